//! Runs blocks, one after the other, on the OS thread that owns the executor.

use std::any::Any;
use std::cell::UnsafeCell;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::ptr;

use corosensei::stack::DefaultStack;
use corosensei::{Coroutine, CoroutineResult};

use crate::block::Block;
use crate::context::{self, Entered};
use crate::deadlock;
use crate::error::Error;
use crate::launch::Launch;
use crate::stacks::Stacks;

type Kernel<'a> = &'a (dyn Fn() + Sync);
type Thread = Coroutine<(), (), (), DefaultStack>;

/// A block's state with the coroutines that run its threads.
pub(crate) struct Executor<'a> {
    launch: &'a Launch<'a>,
    kernel: Kernel<'a>,
    /// In a cell because the kernel's operations reach it through a pointer while `self` is borrowed.
    block: Box<UnsafeCell<Block>>,
    stacks: Stacks,
}

impl<'a> Executor<'a> {
    /// # Errors
    /// [`Error::Stacks`].
    pub(crate) fn new(launch: &'a Launch<'a>, kernel: Kernel<'a>) -> Result<Self, Error> {
        let stacks = Stacks::take(launch.block as usize).map_err(|error| Error::Stacks {
            kernel: launch.name.to_owned(),
            threads: launch.block,
            reason: error.to_string(),
        })?;
        Ok(Self { launch, kernel, block: Box::new(UnsafeCell::new(Block::new(launch))), stacks })
    }

    /// The state after the last block.
    pub(crate) fn block(&mut self) -> &mut Block {
        self.block.get_mut()
    }

    /// Runs block `index` to its end.
    ///
    /// # Errors
    /// What a detector found.
    pub(crate) fn run(&mut self, index: u32) -> Result<(), Error> {
        self.block.get_mut().begin(index, self.launch);
        let mut threads = self.spawn();
        let block = self.block.get();
        drive(block, &mut threads);
        for thread in &mut threads {
            // A failed block leaves threads suspended; what stands on their stacks is dropped.
            // SAFETY: the block is valid, and no reference to it is alive.
            let _entered = unsafe { Entered::new(block) };
            thread.force_unwind();
        }
        self.stacks.free.extend(threads.into_iter().map(Coroutine::into_stack));
        self.block.get_mut().failure.take().map_or(Ok(()), Err)
    }

    fn spawn(&mut self) -> Vec<Thread> {
        let kernel = self.kernel;
        let stacks = self.stacks.free.drain(..);
        stacks
            .map(|stack| {
                // SAFETY: the body borrows the kernel, which outlives `run`, and `run` unwinds
                // and drops every coroutine before it returns.
                unsafe {
                    Coroutine::with_stack_unchecked(stack, move |yielder, ()| {
                        context::with(|block| block.set_current_yielder(ptr::from_ref(yielder)));
                        let result = catch_unwind(AssertUnwindSafe(kernel));
                        context::with(|block| match result {
                            Ok(()) => block.check_return(),
                            Err(payload) => record_panic(block, &*payload),
                        });
                    })
                }
            })
            .collect()
    }
}

/// Resumes one thread after the other until all have finished, one fails, or none can advance.
fn drive(block: *mut Block, threads: &mut [Thread]) {
    loop {
        // SAFETY: the caller's block is valid, and no kernel code runs during this statement.
        let next = unsafe { (*block).advance() };
        let Some(thread) = next else { break };
        let outcome = {
            // SAFETY: the block is valid, and no reference to it is alive.
            let _entered = unsafe { Entered::new(block) };
            threads[thread].resume(())
        };
        let done = matches!(outcome, CoroutineResult::Return(()));
        // SAFETY: as above, the kernel code having come to rest.
        let state = unsafe { &mut *block };
        state.threads[thread].finished = done;
        if state.failure.is_some() {
            return;
        }
    }
    // SAFETY: as above.
    let state = unsafe { &mut *block };
    if state.failure.is_none() {
        let suspicion = state.suspicion.take().map(|error| *error);
        state.failure = suspicion.or_else(|| deadlock::find(state)).or_else(|| state.left_over());
    }
}

/// Turns what left a kernel by unwinding into the block's failure. Once the block has failed,
/// unwinds are the executor's own.
fn record_panic(block: &mut Block, payload: &(dyn Any + Send)) {
    if block.failure.is_some() {
        return;
    }
    let panic = context::take_panic(payload);
    block.failure = Some(Error::KernelPanic {
        kernel: block.kernel.clone(),
        block: block.index,
        thread: block.current as u32,
        message: panic.message,
        location: panic.location,
    });
}
