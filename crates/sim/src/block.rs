//! The state of one block: its threads, and the facilities that they share.

mod accumulators;
mod barriers;
mod between;
mod clusters;
mod copies;
mod faults;
mod global_waits;
mod groups;
mod matrices;
mod mbarriers;
mod meeting;
mod memory;
mod products;
mod progress;
mod registers;
mod transfers;

use std::collections::HashSet;
use std::sync::Arc;

use corosensei::Yielder;

use crate::between::{Between, EARLY, Past};
use crate::error::Error;
use crate::launch::Launch;
use crate::operation::Results;
use crate::race::Races;
use crate::schedule::{Picker, Runnable};
use crate::site::SiteId;
use crate::state::barriers::Barriers;
use crate::state::cluster::Member;
use crate::state::copies::Copies;
use crate::state::global::{Global, GlobalWaits};
use crate::state::mbarriers::Mbarriers;
use crate::state::registers::RegisterLimits;
use crate::state::shared::Shared;
use crate::state::sites::Sites;
use crate::state::transfers::Transfers;
use crate::state::warp::Warp;
use crate::state::warpgroup::Warpgroup;
use crate::threads::{LANES, WARPGROUP, WARPGROUP_WARPS, lanes};

/// One GPU thread, as the operations see it.
pub(crate) struct Thread {
    yielder: *const Yielder<(), ()>,
    /// What the last warp operation gave this lane.
    pub(crate) result: Results,
    pub(crate) finished: bool,
}

/// What an agent of the race detector stands for.
#[derive(Clone, Copy)]
pub(crate) enum Role {
    /// The TMA loads that complete on an mbarrier, the last issued by a thread.
    Loads { mbarrier: usize, issuer: usize },
    /// The TMA stores of a thread.
    Stores { thread: usize },
    /// The products of a warpgroup.
    Products { warpgroup: usize },
}

impl Role {
    /// A thread that issues its operations.
    pub(crate) fn thread(self) -> usize {
        match self {
            Self::Loads { issuer, .. } => issuer,
            Self::Stores { thread } => thread,
            Self::Products { warpgroup } => warpgroup * WARPGROUP as usize,
        }
    }
}

/// All that the threads of the running block share. One value serves the blocks of a worker in turn.
pub(crate) struct Block {
    pub(crate) kernel: String,
    /// Index of the block in the grid.
    pub(crate) index: u32,
    /// Blocks of the grid.
    pub(crate) grid: u32,
    /// Index of the running thread.
    pub(crate) current: usize,
    pub(crate) threads: Vec<Thread>,
    pub(crate) runnable: Runnable,
    pub(crate) picker: Picker,
    pub(crate) warps: Vec<Warp>,
    pub(crate) barriers: Barriers,
    /// `None` where the launch has no clusters.
    pub(crate) cluster: Option<Member>,
    pub(crate) shared: Shared,
    pub(crate) copies: Copies,
    pub(crate) mbarriers: Mbarriers,
    pub(crate) transfers: Transfers,
    /// By warpgroup.
    pub(crate) warpgroups: Vec<Warpgroup>,
    pub(crate) register_limits: RegisterLimits,
    /// By agent of `races`.
    pub(crate) roles: Vec<Role>,
    /// `None` where the schedule leaves races unreported.
    pub(crate) races: Option<Races>,
    /// What blocks of the launch know of each other; `None` where races go unreported, or it is alone.
    pub(crate) between: Option<Arc<Between>>,
    pub(crate) past: Past,
    /// How many more accesses are recorded for races between blocks before the launch is watched.
    pub(crate) early: u32,
    pub(crate) global: Global,
    pub(crate) global_waits: GlobalWaits,
    pub(crate) sites: Sites,
    pub(crate) barrier_sites: HashSet<SiteId>,
    pub(crate) failure: Option<Error>,
    /// Why the launch fails unless the threads that still run show a better reason.
    pub(crate) suspicion: Option<Box<Error>>,
}

impl Block {
    pub(crate) fn new(launch: &Launch<'_>, between: Option<Arc<Between>>) -> Self {
        let threads = launch.block as usize;
        Self {
            kernel: launch.name.to_owned(),
            index: 0,
            grid: launch.grid,
            current: 0,
            threads: Vec::new(),
            runnable: Runnable::default(),
            picker: Picker::new(&launch.schedule, 0, threads / LANES),
            warps: Vec::new(),
            barriers: Barriers::default(),
            cluster: None,
            shared: Shared::new(launch.shared_bytes),
            copies: Copies::default(),
            mbarriers: Mbarriers::default(),
            transfers: Transfers::default(),
            warpgroups: Vec::new(),
            register_limits: RegisterLimits::default(),
            roles: Vec::new(),
            races: launch.schedule.detect_races.then(|| Races::new(threads, launch.shared_bytes as usize)),
            between,
            past: Past::default(),
            early: EARLY,
            global: Global::new(launch.buffers),
            global_waits: GlobalWaits::default(),
            sites: Sites::new(),
            barrier_sites: HashSet::new(),
            failure: None,
            suspicion: None,
        }
    }

    /// Makes this the state of block `index` before its first thread runs.
    pub(crate) fn begin(&mut self, index: u32, launch: &Launch<'_>) {
        let threads = launch.block as usize;
        let warps = threads / LANES;
        self.index = index;
        self.threads.clear();
        self.threads.resize_with(threads, || Thread {
            yielder: std::ptr::null(),
            result: Results::default(),
            finished: false,
        });
        self.runnable = Runnable::all(threads);
        self.picker = Picker::new(&launch.schedule, index, warps);
        self.warps.clear();
        self.warps.resize_with(warps, Warp::default);
        self.barriers = Barriers::default();
        self.cluster = None;
        self.shared.begin_block();
        self.copies.begin_block(threads);
        self.mbarriers.begin_block();
        self.global_waits = GlobalWaits::default();
        let before = self.between.as_ref().map_or(0, |between| between.before());
        self.past.begin(before + index);
        self.transfers.begin_block();
        self.warpgroups.clear();
        self.warpgroups.resize_with(warps / WARPGROUP_WARPS, Warpgroup::default);
        self.register_limits = RegisterLimits::default();
        self.roles.clear();
        if let Some(races) = &mut self.races {
            races.begin_block();
        }
    }

    /// Makes a block that begins one of a cluster.
    pub(crate) fn join(&mut self, member: Member) {
        self.cluster = Some(member);
        self.shared.track_changes();
    }

    pub(crate) fn set_current_yielder(&mut self, yielder: *const Yielder<(), ()>) {
        self.threads[self.current].yielder = yielder;
    }

    #[inline]
    pub(crate) fn current_yielder(&self) -> *const Yielder<(), ()> {
        self.threads[self.current].yielder
    }

    /// Runs `f` as if `thread` were the running one: a lane of the warp whose operation completes.
    pub(crate) fn as_thread<R>(&mut self, thread: usize, f: impl FnOnce(&mut Self) -> R) -> R {
        let running = std::mem::replace(&mut self.current, thread);
        let result = f(self);
        self.current = running;
        result
    }

    /// Lets the waiting lanes of a warp go on.
    pub(crate) fn release(&mut self, warp: usize) {
        self.warps[warp].meeting = None;
        for thread in lanes(warp) {
            self.runnable.insert(thread);
        }
    }

    /// Records why the launch fails; the first reason stands.
    pub(crate) fn fail(&mut self, error: Error) {
        self.failure.get_or_insert(error);
    }
}
