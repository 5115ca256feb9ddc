//! Copies of boxes of a tensor between device and shared memory (PTX ISA, `cp.async.bulk.tensor`, tile mode,
//! from sm_90 on), and of consecutive bytes (`cp.async.bulk`).
//!
//! A [`TensorMap`], made on the host, says where the tensor lies, its sizes and strides, the box of one copy,
//! and how the box is swizzled in shared memory. One thread issues a copy of any size. Coordinates count
//! elements, the innermost dimension first; what lies outside of the tensor is read as 0 and not written.
//!
//! A load is over when its bytes have been counted at an [`mbarrier`](super::mbarrier); they count whether
//! they lie inside of the tensor or not. Stores are waited for in groups, by the thread that issued them.

#[cfg(target_arch = "nvptx64")]
use core::arch::asm;

/// A tensor's description in the form that the hardware reads, made by `cuTensorMapEncodeTiled`.
///
/// The device needs it at a multiple of 64 bytes; the PTX builder declares the parameter of an entry that
/// takes tensor maps so.
#[repr(C)]
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct TensorMap(pub [u64; 16]);

impl TensorMap {
    /// Size in bytes.
    pub const BYTES: u64 = size_of::<Self>() as u64;
}

/// Generic address of an entry's parameter, inside that entry (PTX ISA, `cvta.param`).
#[cfg(target_feature = "sm_90a")]
macro_rules! parameter_address {
    ($entry:expr) => {{
        let address: u64;
        // SAFETY: takes the address of the entry's parameter, which every launch has.
        unsafe {
            core::arch::asm!(concat!("mov.b64 {0}, ", $entry, "_param_0;"), "cvta.param.u64 {0}, {0};",
                out(reg64) address, options(pure, nomem, nostack))
        }
        address
    }};
}
#[cfg(target_feature = "sm_90a")]
pub(crate) use parameter_address;

/// Begins to read a tensor map, so that the first copy need not wait for it (`prefetch.tensormap`).
///
/// # Safety
/// `map` is the generic address of a tensor map.
#[inline(always)]
#[track_caller]
pub unsafe fn prefetch(map: u64) {
    cfg_select! {
        target_arch = "nvptx64" => {
            // SAFETY: the caller's contract is the instruction's.
            unsafe { asm!("prefetch.tensormap [{0}];", in(reg64) map, options(nostack)) }
        }
        _ => { twin!(fa_sim::tma::prefetch(map)) }
    }
}

/// Load and store of one rank.
macro_rules! copies {
    ($load:ident, $store:ident, $rank:literal, $($index:literal)*) => {
        #[doc = concat!("Begins to load the box at `coordinates` of a tensor of ", $rank, " dimensions")]
        #[doc = concat!("(`cp.async.bulk.tensor.", $rank, "d.shared::cluster.global`).")]
        ///
        /// # Safety
        /// `map` is the generic address of a tensor map of this rank, whose tensor is device memory that
        /// nobody writes in this kernel; its box begins at a multiple of 16 bytes of the tensor. `shared` is
        /// aligned to 128 bytes, and to the swizzle's pattern; the box fits behind it in the block's shared
        /// memory, and nobody accesses it until after a wait for the phase of `barrier` that the box's bytes
        /// were announced for.
        #[inline(always)]
        #[track_caller]
        pub unsafe fn $load(shared: u32, map: u64, barrier: u32, coordinates: [i32; $rank]) {
            cfg_select! {
                target_arch = "nvptx64" => {
                    // SAFETY: the caller's contract is the instruction's.
                    unsafe {
                        asm!(concat!("cp.async.bulk.tensor.", $rank,
                                "d.shared::cluster.global.mbarrier::complete_tx::bytes [{shared}], [{map}, {{",
                                box_at!($($index)*), "}}], [{barrier}];"),
                            $(in(reg32) coordinates[$index],)* shared = in(reg32) shared, map = in(reg64) map,
                            barrier = in(reg32) barrier, options(nostack))
                    }
                }
                // SAFETY: the map is a tensor's in device memory; the simulator also checks every address.
                _ => { twin!(unsafe { fa_sim::tma::load(shared, map, barrier, coordinates) }) }
            }
        }

        #[doc = concat!("Begins to store the box at `coordinates` of a tensor of ", $rank, " dimensions")]
        #[doc = concat!("(`cp.async.bulk.tensor.", $rank, "d.global.shared::cta.bulk_group`).")]
        ///
        /// # Safety
        #[doc = concat!("As [`", stringify!($load), "`], of device memory that no other thread accesses.")]
        /// What is stored was written before a [`fence::proxy_async`](super::fence::proxy_async) of the
        /// writing threads that this call is ordered after, and nobody writes it until a [`wait_group_read`]
        /// covers the store. The thread waits for its stores before it returns.
        #[inline(always)]
        #[track_caller]
        pub unsafe fn $store(map: u64, shared: u32, coordinates: [i32; $rank]) {
            cfg_select! {
                target_arch = "nvptx64" => {
                    // SAFETY: the caller's contract is the instruction's.
                    unsafe {
                        asm!(concat!("cp.async.bulk.tensor.", $rank,
                                "d.global.shared::cta.bulk_group [{map}, {{", box_at!($($index)*), "}}], [{shared}];"),
                            $(in(reg32) coordinates[$index],)* shared = in(reg32) shared, map = in(reg64) map,
                            options(nostack))
                    }
                }
                // SAFETY: as above.
                _ => { twin!(unsafe { fa_sim::tma::store(map, shared, coordinates) }) }
            }
        }
    };
}

/// The coordinates' operands.
#[cfg(target_arch = "nvptx64")]
macro_rules! box_at {
    ($first:literal $($index:literal)*) => { concat!("{", $first, "}" $(, ", {", $index, "}")*) };
}

copies!(load_2d, store_2d, 2, 0 1);
copies!(load_3d, store_3d, 3, 0 1 2);
copies!(load_4d, store_4d, 4, 0 1 2 3);

/// A policy for lines of L2: to make room before others, or when they are the oldest (PTX ISA,
/// `createpolicy.fractional.L2`).
#[inline(always)]
pub fn l2_policy(evict_first: bool) -> u64 {
    cfg_select! {
        target_arch = "nvptx64" => {
            let [first, normal]: [u64; 2];
            // SAFETY: register arithmetic only.
            unsafe {
                asm!("createpolicy.fractional.L2::evict_first.b64 {0}, 1.0;", out(reg64) first,
                    options(pure, nomem, nostack));
                asm!("createpolicy.fractional.L2::evict_normal.b64 {0}, 1.0;", out(reg64) normal,
                    options(pure, nomem, nostack));
            }
            if evict_first { first } else { normal }
        }
        _ => { u64::from(evict_first) }
    }
}

/// As [`load_4d`], with a policy of [`l2_policy`] for what it reads (`.L2::cache_hint`).
///
/// # Safety
/// As [`load_4d`].
#[inline(always)]
#[track_caller]
pub unsafe fn load_4d_with(shared: u32, map: u64, barrier: u32, coordinates: [i32; 4], policy: u64) {
    cfg_select! {
        target_arch = "nvptx64" => {
            // SAFETY: the caller's contract is the instructions'.
            unsafe {
                asm!(concat!("cp.async.bulk.tensor.4d.shared::cluster.global.mbarrier::complete_tx::bytes",
                        ".L2::cache_hint [{shared}], [{map}, {{", box_at!(0 1 2 3), "}}], [{barrier}], {policy};"),
                    in(reg32) coordinates[0], in(reg32) coordinates[1], in(reg32) coordinates[2],
                    in(reg32) coordinates[3], shared = in(reg32) shared, map = in(reg64) map,
                    barrier = in(reg32) barrier, policy = in(reg64) policy, options(nostack))
            }
        }
        _ => {
            let _ = policy; // It changes no result.
            // SAFETY: as above.
            twin!(unsafe { fa_sim::tma::load(shared, map, barrier, coordinates) })
        }
    }
}

/// Begins to load `bytes` consecutive bytes, as a box is loaded
/// (`cp.async.bulk.shared::cluster.global.mbarrier::complete_tx::bytes`).
///
/// # Safety
/// `address`, `shared` and `bytes`, which is not 0, are multiples of 16; the bytes are device memory that
/// nobody writes in this kernel. Shared memory is as [`load_4d`] wants it.
#[inline(always)]
#[track_caller]
pub unsafe fn load_bytes(shared: u32, address: u64, bytes: u32, barrier: u32) {
    cfg_select! {
        target_arch = "nvptx64" => {
            // SAFETY: the caller's contract is the instruction's.
            unsafe {
                asm!("cp.async.bulk.shared::cluster.global.mbarrier::complete_tx::bytes [{0}], [{1}], {2}, [{3}];",
                    in(reg32) shared, in(reg64) address, in(reg32) bytes, in(reg32) barrier, options(nostack))
            }
        }
        // SAFETY: the bytes are device memory; the simulator also checks every address.
        _ => { twin!(unsafe { fa_sim::tma::load_bytes(shared, address, bytes, barrier) }) }
    }
}

/// Begins to store `bytes` consecutive bytes, as a box is stored
/// (`cp.async.bulk.global.shared::cta.bulk_group`).
///
/// # Safety
/// `address`, `shared` and `bytes`, which is not 0, are multiples of 16; the bytes lie in the block's shared
/// memory, and go to device memory that no other thread accesses. They were written, and are waited for, as
/// those of [`store_4d`] are.
#[inline(always)]
#[track_caller]
pub unsafe fn store_bytes(address: u64, shared: u32, bytes: u32) {
    cfg_select! {
        target_arch = "nvptx64" => {
            // SAFETY: the caller's contract is the instruction's.
            unsafe {
                asm!("cp.async.bulk.global.shared::cta.bulk_group [{0}], [{1}], {2};",
                    in(reg64) address, in(reg32) shared, in(reg32) bytes, options(nostack))
            }
        }
        // SAFETY: no other thread accesses the target; the simulator also checks every address.
        _ => { twin!(unsafe { fa_sim::tma::store_bytes(address, shared, bytes) }) }
    }
}

/// Closes a group of all stores that this thread has issued since the last one
/// (`cp.async.bulk.commit_group`).
#[inline(always)]
#[track_caller]
pub fn commit_group() {
    cfg_select! {
        target_arch = "nvptx64" => {
            // SAFETY: touches no memory of its own.
            unsafe { asm!("cp.async.bulk.commit_group;", options(nostack)) }
        }
        _ => { twin!(fa_sim::tma::commit_group()) }
    }
}

/// Waits until at most the `PENDING` youngest groups of this thread's stores are not complete
/// (`cp.async.bulk.wait_group`).
#[inline(always)]
#[track_caller]
pub fn wait_group<const PENDING: usize>() {
    cfg_select! {
        target_arch = "nvptx64" => {
            // SAFETY: waits.
            unsafe { asm!("cp.async.bulk.wait_group {0};", const PENDING, options(nostack)) }
        }
        _ => { twin!(fa_sim::tma::wait_group(PENDING)) }
    }
}

/// Waits until at most the `PENDING` youngest groups of this thread's stores still read shared memory
/// (`cp.async.bulk.wait_group.read`).
#[inline(always)]
#[track_caller]
pub fn wait_group_read<const PENDING: usize>() {
    cfg_select! {
        target_arch = "nvptx64" => {
            // SAFETY: waits; that shared memory may be written again is in the lack of `nomem`.
            unsafe { asm!("cp.async.bulk.wait_group.read {0};", const PENDING, options(nostack)) }
        }
        _ => { twin!(fa_sim::tma::wait_group_read(PENDING)) }
    }
}
