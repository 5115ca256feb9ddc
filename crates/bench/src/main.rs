//! The program `fa-bench`.

use std::process::ExitCode;

/// Counts bytes, which is how the experiment `memory` knows what a kernel takes on the CPU.
#[global_allocator]
static HEAP: fa_bench::heap::Counting = fa_bench::heap::Counting;

fn main() -> ExitCode {
    fa_bench::main()
}
