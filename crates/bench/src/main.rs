//! The program `fa-bench`.

use std::process::ExitCode;

fn main() -> ExitCode {
    fa_bench::main()
}
