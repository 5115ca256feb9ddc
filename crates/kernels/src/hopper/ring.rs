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
        // SAFETY: the caller's thread makes the barriers, which are aligned, before a block barrier.
        unsafe { Self::init_filled_by(barriers, 1, consumers) }
    }

    /// As [`Self::init`], of stages that so many producers fill together, each at its own place in the ring.
    ///
    /// # Safety
    /// As [`Self::init`].
    #[inline(always)]
    pub unsafe fn init_filled_by(barriers: u32, producers: u32, consumers: u32) {
        let mut stage = 0;
        while stage < S::COUNT {
            // SAFETY: one thread makes the barriers, in shared memory that is aligned to 8 bytes.
            unsafe {
                mbarrier::init(barriers + 8 * stage, producers);
                mbarrier::init(barriers + 8 * (S::COUNT + stage), consumers);
            }
            stage += 1;
        }
        mbarrier::fence_init();
    }

    /// The producer's place at first: its waits for empty stages return at once the first time around.
    ///
    /// # Safety
    /// [`Self::init`] has made the barriers, or will have before the first wait. One thread is the producer;
    /// it, or who fills in its place, writes a stage between [`Self::acquire`] or [`Self::wait_empty`] and
    /// its filling alone.
    #[inline(always)]
    pub unsafe fn producer(barriers: u32) -> Self {
        Self { barriers, stage: 0, parity: 1, stages: PhantomData }
    }

    /// A consumer's place at first.
    ///
    /// # Safety
    /// [`Self::init`] has made the barriers, or will have before the first wait. The consumer reads a stage
    /// between [`Self::wait`] and its release alone, and releases each once, in order.
    #[inline(always)]
    pub unsafe fn consumer(barriers: u32) -> Self {
        Self { barriers, stage: 0, parity: 0, stages: PhantomData }
    }

    /// A consumer's place that waits for the phase of parity `parity` of the first stage.
    ///
    /// # Safety
    /// As [`Self::consumer`].
    #[inline(always)]
    pub unsafe fn consumer_of_phase(barriers: u32, parity: u32) -> Self {
        Self { barriers, stage: 0, parity, stages: PhantomData }
    }

    /// A consumer's place in the ring at `barriers`, of one or two stages, which it goes around as far as in
    /// this one of two.
    ///
    /// # Safety
    /// As [`Self::consumer`].
    #[inline(always)]
    pub unsafe fn beside<T: Stages>(&self, barriers: u32) -> Ring<T> {
        const { assert!(S::COUNT == 2 && T::COUNT <= 2) };
        let (stage, parity) = if T::COUNT == 2 { (self.stage, self.parity) } else { (0, self.stage) };
        Ring { barriers, stage, parity, stages: PhantomData }
    }

    /// The same place in the ring whose barriers lie `bytes` bytes behind, where all go around both alike.
    ///
    /// # Safety
    /// As [`Self::consumer`] or [`Self::producer`], of that ring.
    #[inline(always)]
    pub unsafe fn behind(self, bytes: u32) -> Self {
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

    /// The producer waits until all consumers have released the stage, announces `bytes` bytes of copies into
    /// it, and gets the barrier that they are counted at.
    #[inline(always)]
    #[track_caller]
    pub fn acquire(&self, bytes: u32) -> u32 {
        self.acquire_behind(bytes, 0)
    }

    /// As [`Self::acquire`], with copies that are counted at the barrier `distance` bytes behind the full
    /// one, made for one arrival, for a warp that waits there and then calls [`Self::fill`] in the producer's
    /// place.
    #[inline(always)]
    #[track_caller]
    pub fn acquire_behind(&self, bytes: u32, distance: u32) -> u32 {
        let landed = self.full() + distance;
        self.wait_empty();
        // SAFETY: the producer is the barrier's only arrival, once a phase.
        unsafe { mbarrier::arrive_expect_tx(landed, bytes) };
        landed
    }

    /// The producer waits until all consumers have released the stage, to write it and [`Self::fill`] it.
    #[inline(always)]
    #[track_caller]
    pub fn wait_empty(&self) {
        // SAFETY: the barrier is made; the producer is at most one phase ahead of it.
        unsafe { mbarrier::wait(self.barriers + 8 * (S::COUNT + self.stage), self.parity) }
    }

    /// Hands what was written since [`Self::wait_empty`], or has landed since [`Self::acquire_behind`], to
    /// the consumers.
    #[inline(always)]
    #[track_caller]
    pub fn fill(&self) {
        // SAFETY: the barrier is made; this is its only arrival of the phase.
        unsafe { mbarrier::arrive(self.full()) }
    }

    /// A consumer waits until the stage is there.
    #[inline(always)]
    #[track_caller]
    pub fn wait(&self) {
        // SAFETY: the barrier is made; consumers are at most one phase behind, because the producer waits for
        // them.
        unsafe { mbarrier::wait(self.full(), self.parity) }
    }

    /// A consumer leaves the stage to the producer.
    #[inline(always)]
    #[track_caller]
    pub fn release(&self) {
        // SAFETY: the barrier is made for as many arrivals as there are consumers, each of which releases
        // once.
        unsafe { mbarrier::arrive(self.barriers + 8 * (S::COUNT + self.stage)) }
    }

    /// A warp leaves the stage to the producer, by its lane that `leads`, and goes on to the next.
    #[inline(always)]
    #[track_caller]
    pub fn leave(&mut self, leads: bool) {
        if leads {
            self.release();
        }
        self.advance();
    }
}
