//! Runs blocks, one after the other, on the OS thread that owns the executor.

use std::any::Any;
use std::cell::UnsafeCell;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::ptr;
use std::sync::Arc;

use corosensei::stack::DefaultStack;
use corosensei::{Coroutine, CoroutineResult};

use crate::between::Between;
use crate::block::Block;
use crate::context::{self, Entered};
use crate::deadlock;
use crate::error::Error;
use crate::launch::Launch;
use crate::stacks::Stacks;
use crate::state::cluster::Member;

type Kernel<'a> = &'a (dyn Fn() + Sync);
type Thread = Coroutine<(), (), (), DefaultStack>;

/// A block's state with the coroutines that run its threads.
pub(crate) struct Executor<'a> {
    launch: &'a Launch<'a>,
    kernel: Kernel<'a>,
    /// In a cell because the kernel's operations reach it through a pointer while `self` is borrowed.
    block: Box<UnsafeCell<Block>>,
    /// Those of a block that has begun and not ended.
    threads: Vec<Thread>,
    stacks: Stacks,
}

/// How far a block has come.
pub(crate) enum Progress {
    /// None of its threads can run until another block adds to a word of memory.
    Waits,
    /// It has ended, with what a detector found.
    Ended(Result<(), Error>),
}

impl<'a> Executor<'a> {
    /// # Errors
    /// [`Error::Stacks`].
    pub(crate) fn new(
        launch: &'a Launch<'a>,
        kernel: Kernel<'a>,
        between: Option<Arc<Between>>,
    ) -> Result<Self, Error> {
        let stacks = Stacks::take(launch.block as usize).map_err(|error| Error::Stacks {
            kernel: launch.name.to_owned(),
            threads: launch.block,
            reason: error.to_string(),
        })?;
        Ok(Self::with_stacks((launch, kernel), stacks, between))
    }

    /// One for a further block of the same launch, if there are stacks for it.
    pub(crate) fn another(&mut self) -> Option<Self> {
        let stacks = Stacks::try_take(self.launch.block as usize)?;
        let between = self.block().between.clone();
        Some(Self::with_stacks((self.launch, self.kernel), stacks, between))
    }

    fn with_stacks(
        (launch, kernel): (&'a Launch<'a>, Kernel<'a>),
        stacks: Stacks,
        between: Option<Arc<Between>>,
    ) -> Self {
        let block = Box::new(UnsafeCell::new(Block::new(launch, between)));
        Self { launch, kernel, block, threads: Vec::new(), stacks }
    }

    /// The state after the last block.
    pub(crate) fn block(&mut self) -> &mut Block {
        self.block.get_mut()
    }

    /// Whether a block has begun and not ended.
    pub(crate) fn is_running(&self) -> bool {
        !self.threads.is_empty()
    }

    /// Begins block `index`, with no other at hand.
    pub(crate) fn begin(&mut self, index: u32) {
        self.block.get_mut().begin(index, self.launch);
        self.threads = self.spawn();
    }

    /// As [`Self::begin`], of a block of a cluster.
    pub(crate) fn begin_in_cluster(&mut self, index: u32, member: Member) {
        self.begin(index);
        self.block.get_mut().join(member);
    }

    /// Runs the block at hand until it ends, or waits for others.
    pub(crate) fn go_on(&mut self) -> Progress {
        let block = self.block.get();
        self.block.get_mut().look_again();
        if drive(block, &mut self.threads) {
            return Progress::Waits;
        }
        self.end();
        Progress::Ended(self.block.get_mut().failure.take().map_or(Ok(()), Err))
    }

    /// Takes the stacks back.
    fn end(&mut self) {
        for thread in &mut self.threads {
            // A block that failed or waits leaves threads suspended; what stands on their stacks is dropped.
            // SAFETY: the block is valid, and no reference to it is alive.
            let _entered = unsafe { Entered::new(self.block.get()) };
            thread.force_unwind();
        }
        self.stacks.free.extend(self.threads.drain(..).map(Coroutine::into_stack));
    }

    fn spawn(&mut self) -> Vec<Thread> {
        let kernel = self.kernel;
        let stacks = self.stacks.free.drain(..);
        stacks
            .map(|stack| {
                // SAFETY: the body borrows the kernel, which outlives the executor, whose end unwinds and
                // drops every coroutine.
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

impl Drop for Executor<'_> {
    fn drop(&mut self) {
        self.end();
    }
}

/// Resumes one thread after the other until all have finished, one fails, or none can advance. Says whether
/// that is because the block waits for others.
fn drive(block: *mut Block, threads: &mut [Thread]) -> bool {
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
            return false;
        }
    }
    // SAFETY: as above.
    let state = unsafe { &mut *block };
    if state.waits_for_blocks() {
        return true;
    }
    if state.failure.is_none() {
        let suspicion = state.suspicion.take().map(|error| *error);
        let failure = suspicion.or_else(|| deadlock::find(state)).or_else(|| state.left_over());
        state.failure = failure.or_else(|| state.end_stores()).or_else(|| state.end_in_cluster());
    }
    false
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
