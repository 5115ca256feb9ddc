//! Measurements on the device: its clock, its bandwidth, and what its tensor cores reach.

mod clock;
mod copy;
mod peak;
mod read;

pub(crate) use clock::Clock;
pub use copy::DeviceCopy;
pub use peak::MmaPeak;
pub use read::DeviceRead;
