//! The accesses to each cell of shared memory that may still race with a later one.

use std::collections::HashMap;
use std::ops::Range;

use bytemuck::Zeroable;

use super::agent_reads::AgentReads;
use super::clock::Actor;
use super::conflict::Conflict;
use crate::error::AccessKind;
use crate::site::SiteId;
use crate::threads::LANES;

/// The epoch of a write that its own thread is not ordered after either: a copy in flight.
pub(super) const IN_FLIGHT: u32 = u32::MAX;

/// The author of the "write" that keeps everybody from an mbarrier, and its epoch, which nobody reaches.
pub(super) const RESERVED: u16 = u16::MAX;
pub(super) const RESERVED_EPOCH: u32 = IN_FLIGHT - 1;

/// The last write to each cell, and the reads since then.
pub(super) struct History {
    words: usize,
    /// One for each word; after these, once any word is split, one for each byte.
    pub(super) cells: Vec<Cell>,
    /// By warp, then by cell: the lanes of a warp read neighbouring cells.
    reads: Vec<Reads>,
    /// One bit for each word; empty until one is split.
    pub(super) split: Vec<u64>,
    stragglers: HashMap<usize, Vec<Straggler>>,
    /// What asynchronous operations have read.
    pub(super) agents: AgentReads,
    /// Cells that are part of an mbarrier.
    pub(super) reserved: Vec<usize>,
}

/// The last write to a cell, and which warps have read it since.
#[derive(Clone, Copy)]
pub(super) struct Cell {
    /// Epoch of the last write; 0 for none, [`IN_FLIGHT`] for one that nobody is ordered after yet.
    pub(super) write_epoch: u32,
    pub(super) write_thread: u16,
    pub(super) write_site: SiteId,
    /// One bit for each warp whose [`Reads`] of this cell are valid.
    pub(super) readers: u32,
    /// Where else there are reads of this cell: [`STRAGGLERS`], [`AGENTS`].
    pub(super) elsewhere: u32,
}

/// `History::stragglers` holds reads of the cell.
const STRAGGLERS: u32 = 1;

/// `History::agents` holds reads of the cell's chunk.
pub(super) const AGENTS: u32 = 2;

// SAFETY: all fields are integers.
unsafe impl Zeroable for Cell {}

/// Lanes of one warp that read a cell in the same epoch, from at most two places.
#[derive(Clone, Copy)]
struct Reads {
    epoch: u32,
    lanes: u32,
    /// Those of `lanes` that read at `sites[1]`; the others read at `sites[0]`.
    second: u32,
    sites: [SiteId; 2],
}

// SAFETY: all fields are integers.
unsafe impl Zeroable for Reads {}

/// A read that fits no [`Reads`]: of another epoch than its warp's, or from a third place.
#[derive(Clone, Copy)]
struct Straggler {
    thread: usize,
    epoch: u32,
    site: SiteId,
}

impl History {
    /// Nothing has been accessed yet.
    pub(super) fn new(warps: usize, words: usize) -> Self {
        Self {
            words,
            cells: bytemuck::zeroed_vec(words),
            reads: bytemuck::zeroed_vec(words * warps),
            split: Vec::new(),
            stragglers: HashMap::new(),
            agents: AgentReads::new(warps * LANES, words.div_ceil(4)),
            reserved: Vec::new(),
        }
    }

    pub(super) fn words(&self) -> usize {
        self.words
    }

    /// Records a read of `bytes` at `offset`.
    #[inline]
    pub(super) fn read(&mut self, actor: Actor<'_>, offset: usize, bytes: usize) -> Result<(), Conflict> {
        if self.has_whole_words(bytes) {
            for cell in words_of(offset, bytes) {
                self.read_cell(actor, cell)?;
            }
            return Ok(());
        }
        self.each_cell(offset, bytes, |history, cell| history.read_cell(actor, cell))
    }

    /// Records a write of `bytes` at `offset`.
    #[inline]
    pub(super) fn write(&mut self, actor: Actor<'_>, offset: usize, bytes: usize) -> Result<(), Conflict> {
        if self.has_whole_words(bytes) {
            for cell in words_of(offset, bytes) {
                self.write_cell(actor, cell)?;
            }
            return Ok(());
        }
        self.each_cell(offset, bytes, |history, cell| history.write_cell(actor, cell))
    }

    /// Gives a copy in flight to `offset` an epoch of its thread.
    pub(super) fn complete_copy(&mut self, epoch: u32, offset: usize, bytes: usize) {
        let complete = |history: &mut Self, cell: usize| {
            history.cells[cell].write_epoch = epoch;
            Ok(())
        };
        let completed = if self.has_whole_words(bytes) {
            words_of(offset, bytes).try_for_each(|cell| complete(self, cell))
        } else {
            self.each_cell(offset, bytes, complete)
        };
        debug_assert_eq!(completed, Ok(()));
    }

    /// Whether an access of `bytes` meets no split word.
    #[inline]
    pub(super) fn has_whole_words(&self, bytes: usize) -> bool {
        bytes >= 4 && self.split.is_empty()
    }

    /// Calls `visit` for each cell of an access where words may be split.
    pub(super) fn each_cell(
        &mut self,
        offset: usize,
        bytes: usize,
        mut visit: impl FnMut(&mut Self, usize) -> Result<(), Conflict>,
    ) -> Result<(), Conflict> {
        if bytes < 4 {
            self.split_word(offset / 4);
            return (offset..offset + bytes).try_for_each(|byte| visit(self, self.words + byte));
        }
        for word in words_of(offset, bytes) {
            if self.is_split(word) {
                let first = self.words + 4 * word;
                (first..first + 4).try_for_each(|cell| visit(self, cell))?;
            } else {
                visit(self, word)?;
            }
        }
        Ok(())
    }

    fn is_split(&self, word: usize) -> bool {
        self.split[word / 64] & (1 << (word % 64)) != 0
    }

    /// Gives each byte of `word` the history that the word had.
    fn split_word(&mut self, word: usize) {
        if self.split.is_empty() {
            self.split = vec![0; self.words.div_ceil(64)];
            self.grow_to_bytes();
        }
        if self.is_split(word) {
            return;
        }
        self.split[word / 64] |= 1 << (word % 64);
        let stragglers = self.stragglers.remove(&word);
        for cell in self.words + 4 * word..self.words + 4 * word + 4 {
            self.cells[cell] = self.cells[word];
            for of_warp in self.reads.chunks_exact_mut(5 * self.words) {
                of_warp[cell] = of_warp[word];
            }
            if let Some(list) = &stragglers {
                self.stragglers.insert(cell, list.clone());
            }
        }
    }

    /// Zeroed afresh rather than grown in place: the pages of bytes that are never touched stay unmapped.
    fn grow_to_bytes(&mut self) {
        let words = self.words;
        let warps = self.reads.len() / words;
        let mut cells = bytemuck::zeroed_vec(5 * words);
        cells[..words].copy_from_slice(&self.cells);
        self.cells = cells;
        let mut reads: Vec<Reads> = bytemuck::zeroed_vec(5 * words * warps);
        let new = reads.chunks_exact_mut(5 * words);
        for (new, old) in new.zip(self.reads.chunks_exact(words)) {
            new[..words].copy_from_slice(old);
        }
        self.reads = reads;
    }

    #[inline(always)]
    fn read_cell(&mut self, actor: Actor<'_>, index: usize) -> Result<(), Conflict> {
        let (warp, bit) = (actor.thread / LANES, 1 << (actor.thread % LANES));
        let reads_index = warp * self.cells.len() + index;
        let cell = &mut self.cells[index];
        if !cell.written_before(actor) {
            return Err(self.write_conflict(index));
        }
        let reads = &mut self.reads[reads_index];
        if cell.readers & (1 << warp) == 0 || reads.epoch <= actor.known.floors[warp] {
            // Reads ordered before this one need no record: whatever is ordered after this
            // one is ordered after them.
            cell.readers |= 1 << warp;
            *reads = Reads::first(actor, bit);
            return Ok(());
        }
        if reads.epoch == actor.epoch && (reads.lanes & bit != 0 || reads.add(bit, actor.site)) {
            return Ok(());
        }
        self.read_slow(actor, index);
        Ok(())
    }

    /// A read from a third place in its epoch, or in another epoch than lanes not ordered before it.
    #[cold]
    fn read_slow(&mut self, actor: Actor<'_>, index: usize) {
        let warp = actor.thread / LANES;
        let reads = &mut self.reads[warp * self.cells.len() + index];
        let mut late = Vec::new();
        if reads.epoch == actor.epoch {
            late.push(Straggler { thread: actor.thread, epoch: actor.epoch, site: actor.site });
        } else {
            let others = lanes_of(reads.lanes).map(|lane| Straggler {
                thread: warp * LANES + lane,
                epoch: reads.epoch,
                site: reads.site_of(lane),
            });
            late.extend(others.filter(|read| !actor.follows(read)));
            *reads = Reads::first(actor, 1 << (actor.thread % LANES));
        }
        if !late.is_empty() {
            self.cells[index].elsewhere |= STRAGGLERS;
            let list = self.stragglers.entry(index).or_default();
            list.retain(|old| !actor.follows(old));
            list.extend(late);
        }
    }

    #[inline(always)]
    pub(super) fn write_cell(&mut self, actor: Actor<'_>, index: usize) -> Result<(), Conflict> {
        let cell = self.cells[index];
        if !cell.written_before(actor) {
            return Err(self.write_conflict(index));
        }
        for warp in lanes_of(cell.readers) {
            let reads = &self.reads[warp * self.cells.len() + index];
            if reads.epoch > actor.known.floors[warp] {
                self.check_warp(actor, index, warp)?;
            }
        }
        if cell.elsewhere != 0 {
            self.check_elsewhere(actor, index)?;
        }
        self.cells[index] = Cell {
            write_epoch: actor.epoch,
            write_thread: actor.author as u16,
            write_site: actor.site,
            readers: 0,
            elsewhere: 0,
        };
        Ok(())
    }

    /// The reads of a warp are the actor's own or ordered before what it does now.
    fn check_warp(&self, actor: Actor<'_>, index: usize, warp: usize) -> Result<(), Conflict> {
        let reads = &self.reads[warp * self.cells.len() + index];
        for lane in lanes_of(reads.lanes) {
            let read =
                Straggler { thread: warp * LANES + lane, epoch: reads.epoch, site: reads.site_of(lane) };
            if !actor.follows(&read) {
                return Err(self.read_conflict(index, read));
            }
        }
        Ok(())
    }

    #[cold]
    fn check_elsewhere(&mut self, actor: Actor<'_>, index: usize) -> Result<(), Conflict> {
        let elsewhere = self.cells[index].elsewhere;
        if elsewhere & AGENTS != 0 {
            self.agents.check(actor, self.offset_of(index))?;
        }
        if elsewhere & STRAGGLERS != 0 {
            self.check_stragglers(actor, index)?;
        }
        Ok(())
    }

    /// As [`History::check_warp`], and forgets the reads.
    fn check_stragglers(&mut self, actor: Actor<'_>, index: usize) -> Result<(), Conflict> {
        let reads = self.stragglers.remove(&index).unwrap_or_default();
        match reads.into_iter().find(|read| !actor.follows(read)) {
            Some(read) => Err(self.read_conflict(index, read)),
            None => Ok(()),
        }
    }

    #[cold]
    pub(super) fn write_conflict(&self, index: usize) -> Conflict {
        let cell = &self.cells[index];
        Conflict {
            offset: self.offset_of(index),
            thread: usize::from(cell.write_thread),
            kind: AccessKind::Write,
            site: cell.write_site,
            in_flight: cell.write_epoch == IN_FLIGHT,
            unfenced: false,
        }
    }

    #[cold]
    fn read_conflict(&self, index: usize, read: Straggler) -> Conflict {
        Conflict {
            offset: self.offset_of(index),
            thread: read.thread,
            kind: AccessKind::Read,
            site: read.site,
            in_flight: false,
            unfenced: false,
        }
    }

    /// Offset of the first byte of a cell.
    pub(super) fn offset_of(&self, index: usize) -> usize {
        if index < self.words { 4 * index } else { index - self.words }
    }
}

impl Cell {
    /// Whether the last write is the actor's own or ordered before what it does now.
    #[inline]
    pub(super) fn written_before(&self, actor: Actor<'_>) -> bool {
        let writer = usize::from(self.write_thread);
        actor.known.follows(writer, self.write_epoch)
            || writer == actor.thread && self.write_epoch != IN_FLIGHT
    }
}

impl Actor<'_> {
    /// Whether a read is the actor's own or ordered before what it does now.
    fn follows(&self, read: &Straggler) -> bool {
        read.thread == self.thread || self.known.follows(read.thread, read.epoch)
    }
}

impl Reads {
    #[inline]
    fn first(actor: Actor<'_>, lane_bit: u32) -> Self {
        Self { epoch: actor.epoch, lanes: lane_bit, second: 0, sites: [actor.site; 2] }
    }

    /// Adds a lane of the same epoch; false where its place is a third one.
    #[inline]
    fn add(&mut self, lane_bit: u32, site: SiteId) -> bool {
        if site != self.sites[0] {
            if self.second != 0 && site != self.sites[1] {
                return false;
            }
            self.sites[1] = site;
            self.second |= lane_bit;
        }
        self.lanes |= lane_bit;
        true
    }

    fn site_of(&self, lane: usize) -> SiteId {
        self.sites[(self.second >> lane) as usize & 1]
    }
}

/// The words of an aligned access of 4 bytes or more.
#[inline]
fn words_of(offset: usize, bytes: usize) -> Range<usize> {
    offset / 4..offset / 4 + bytes / 4
}

/// Indices of the set bits.
#[inline]
fn lanes_of(mut mask: u32) -> impl Iterator<Item = usize> {
    std::iter::from_fn(move || {
        let lane = mask.trailing_zeros();
        mask &= mask.wrapping_sub(1);
        (lane < u32::BITS).then_some(lane as usize)
    })
}
