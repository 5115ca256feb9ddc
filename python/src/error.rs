//! The library's errors as Python's.

use flash_attention::Error;
use pyo3::PyErr;
use pyo3::exceptions::{PyRuntimeError, PyValueError};

/// `ValueError` where arguments are at fault, `RuntimeError` where the machine is.
pub(crate) fn raised(error: Error) -> PyErr {
    let message = error.to_string();
    if error.is_usage() { PyValueError::new_err(message) } else { PyRuntimeError::new_err(message) }
}
