//! A ring of buffers in shared memory between one thread that copies into it and warps that read it.
//!
//! Each stage has two [`mbarrier`]s: full, which completes when the bytes of its copies have landed, and
//! empty, which completes when all consumers have released it. Producer and consumers each walk around the
//! ring by themselves.

use core::marker::PhantomData;

use crate::ptx::mbarrier;

/// How many stages a ring has.
pub trait Stages: Copy {
    /// The number.
    const COUNT: u32;
}

/// `N` stages.
#[derive(Clone, Copy, Debug)]
pub struct Count<const N: u32>;

impl<const N: u32> Stages for Count<N> {
    const COUNT: u32 = N;
}

/// A producer's or consumer's place in a ring.
#[derive(Clone, Copy)]
pub struct Ring<S: Stages> {
    /// Address of the full barriers; the empty ones lie behind them.
    barriers: u32,
    /// Stage at hand.
    stage: u32,
    /// Parity of the phase that is waited for.
    parity: u32,
    stages: PhantomData<S>,
}

impl<S: Stages> Ring<S> {
    /// Bytes of the barriers.
    pub const BYTES: u32 = 16 * S::COUNT;

    /// Makes the barriers, for `consumers` releases of each stage.
    ///
    /// # Safety
    /// One thread calls this for the [`Self::BYTES`] bytes of shared memory at `barriers`, which are aligned
    /// to 8, and a block barrier follows before others use the ring.
    #[inline(always)]
    pub unsafe fn init(barriers: u32, consumers: u32) {
        let mut stage = 0;
        while stage < S::COUNT {
            // SAFETY: the caller's contract.
            unsafe {
                mbarrier::init(barriers + 8 * stage, 1);
                mbarrier::init(barriers + 8 * (S::COUNT + stage), consumers);
            }
            stage += 1;
        }
        mbarrier::fence_init();
    }

    /// The producer's place at first: its waits for empty stages return at once the first time around.
    #[inline(always)]
    pub fn producer(barriers: u32) -> Self {
        Self { barriers, stage: 0, parity: 1, stages: PhantomData }
    }

    /// A consumer's place at first.
    #[inline(always)]
    pub fn consumer(barriers: u32) -> Self {
        Self { barriers, stage: 0, parity: 0, stages: PhantomData }
    }

    /// A consumer's place that waits for the phase of parity `parity` of the first stage.
    #[inline(always)]
    pub fn consumer_of_phase(barriers: u32, parity: u32) -> Self {
        Self { barriers, stage: 0, parity, stages: PhantomData }
    }

    /// The same place in the ring whose barriers lie `bytes` bytes behind, where all go around both alike.
    #[inline(always)]
    pub fn behind(self, bytes: u32) -> Self {
        Self { barriers: self.barriers + bytes, ..self }
    }

    /// Address of the full barrier of the stage at hand.
    #[inline(always)]
    pub fn full(&self) -> u32 {
        self.barriers + 8 * self.stage
    }

    /// Index of the stage at hand.
    #[inline(always)]
    pub fn stage(&self) -> u32 {
        self.stage
    }

    /// On to the next stage.
    #[inline(always)]
    pub fn advance(&mut self) {
        self.stage += 1;
        if self.stage == S::COUNT {
            self.stage = 0;
            self.parity ^= 1;
        }
    }

    /// Waits until all consumers have released the stage, announces `bytes` bytes of copies into it, and
    /// gives the barrier that they are counted at.
    ///
    /// # Safety
    /// The producer calls this once for each stage; copies of so many bytes follow.
    #[inline(always)]
    #[track_caller]
    pub unsafe fn acquire(&self, bytes: u32) -> u32 {
        // SAFETY: the caller's contract; the producer is the full barrier's only arrival.
        unsafe { self.acquire_behind(bytes, 0) }
    }

    /// As [`Self::acquire`], with copies that are counted at the barrier `distance` bytes behind the full
    /// one, for a warp that waits there and then calls [`Self::fill`] in the producer's place.
    ///
    /// # Safety
    /// As [`Self::acquire`]; that barrier was made for one arrival.
    #[inline(always)]
    #[track_caller]
    pub unsafe fn acquire_behind(&self, bytes: u32, distance: u32) -> u32 {
        let landed = self.full() + distance;
        // SAFETY: `init` made the empty barrier; the producer is the other's only arrival.
        unsafe {
            self.wait_empty();
            mbarrier::arrive_expect_tx(landed, bytes);
        }
        landed
    }

    /// Waits until all consumers have released the stage, which the producer then writes itself, to
    /// [`Self::fill`] it.
    ///
    /// # Safety
    /// The producer calls this once for each stage.
    #[inline(always)]
    #[track_caller]
    pub unsafe fn wait_empty(&self) {
        // SAFETY: `init` made the barrier.
        unsafe { mbarrier::wait(self.barriers + 8 * (S::COUNT + self.stage), self.parity) }
    }

    /// Hands what the producer has written to the consumers.
    ///
    /// # Safety
    /// The producer calls this after [`Self::wait_empty`], or another in its place after
    /// [`Self::acquire_behind`].
    #[inline(always)]
    #[track_caller]
    pub unsafe fn fill(&self) {
        // SAFETY: `init` made the barrier; this is its only arrival.
        unsafe { mbarrier::arrive(self.full()) }
    }

    /// Waits until the stage's copies have landed.
    ///
    /// # Safety
    /// A consumer calls this before it reads the stage.
    #[inline(always)]
    #[track_caller]
    pub unsafe fn wait(&self) {
        // SAFETY: `init` made the barrier; consumers are at most one phase behind, because the producer waits
        // for them.
        unsafe { mbarrier::wait(self.full(), self.parity) }
    }

    /// Leaves the stage to the producer.
    ///
    /// # Safety
    /// Each consumer calls this once for each stage, when it has read it.
    #[inline(always)]
    #[track_caller]
    pub unsafe fn release(&self) {
        // SAFETY: `init` made the barrier for as many arrivals as there are consumers.
        unsafe { mbarrier::arrive(self.barriers + 8 * (S::COUNT + self.stage)) }
    }

    /// Leaves the stage to the producer for a warp, whose lane that `leads` it releases it, and goes on to
    /// the next.
    ///
    /// # Safety
    /// All lanes of a consuming warp call this together, as [`Self::release`] says; one of them leads.
    #[inline(always)]
    #[track_caller]
    pub unsafe fn leave(&mut self, leads: bool) {
        if leads {
            // SAFETY: the caller's contract.
            unsafe { self.release() };
        }
        self.advance();
    }
}
