//! Models of candle-transformers with and without flash attention, which is candle-flash-attention's here.

mod accuracy;
mod llama;
mod training;
mod weights;

use candle_core::{Device, Result};

fn main() -> Result<()> {
    let device = device();
    llama::run(&device)?;
    training::run(&device)
}

/// The first GPU, or else the CPU.
fn device() -> Device {
    match Device::new_cuda(0) {
        Ok(device) => {
            println!("on GPU 0");
            device
        }
        Err(error) => {
            println!("on the CPU: {}", error.to_string().lines().next().unwrap_or_default());
            Device::Cpu
        }
    }
}
