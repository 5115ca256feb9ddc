//! Blocks that run together and read each other's shared memory (PTX ISA, "Cluster of Cooperative Thread
//! Arrays", from sm_90 on). The host asks for clusters (`CU_LAUNCH_ATTRIBUTE_CLUSTER_DIMENSION`).

#[cfg(target_arch = "nvptx64")]
use core::arch::asm;

#[cfg(target_arch = "nvptx64")]
unsafe extern "unadjusted" {
    #[link_name = "llvm.nvvm.barrier.cluster.arrive.aligned"]
    fn barrier_cluster_arrive();
    #[link_name = "llvm.nvvm.barrier.cluster.arrive.relaxed.aligned"]
    fn barrier_cluster_arrive_relaxed();
    #[link_name = "llvm.nvvm.barrier.cluster.wait.aligned"]
    fn barrier_cluster_wait();
}

/// A special register.
#[cfg(target_arch = "nvptx64")]
macro_rules! special {
    ($name:literal) => {{
        let value: u32;
        // SAFETY: reads a special register.
        unsafe { asm!(concat!("mov.u32 {0}, %", $name, ";"), out(reg32) value, options(pure, nomem, nostack)) };
        value
    }};
}

/// Index of this block in its cluster (`%cluster_ctarank`).
#[inline(always)]
pub fn rank() -> u32 {
    cfg_select! {
        target_arch = "nvptx64" => { special!("cluster_ctarank") }
        _ => { twin!(fa_sim::cluster::rank()) }
    }
}

/// Blocks of each cluster (`%cluster_nctarank`), 1 where the launch has none.
#[inline(always)]
pub fn size() -> u32 {
    cfg_select! {
        target_arch = "nvptx64" => { special!("cluster_nctarank") }
        _ => { twin!(fa_sim::cluster::size()) }
    }
}

/// Index of this cluster in the grid (`%clusterid.x`).
#[inline(always)]
pub fn index() -> u32 {
    cfg_select! {
        target_arch = "nvptx64" => { special!("clusterid.x") }
        _ => { twin!(fa_sim::index::block() / fa_sim::cluster::size()) }
    }
}

/// Waits until all threads of all blocks of the cluster have arrived, and orders what they did in shared
/// memory before it against what they do after it (`barrier.cluster.arrive.release.aligned`,
/// `barrier.cluster.wait.acquire.aligned`).
///
/// # Safety
/// The launch has clusters, and all threads of each warp execute this call together.
#[inline(always)]
#[track_caller]
pub unsafe fn sync() {
    cfg_select! {
        target_arch = "nvptx64" => {
            // SAFETY: the caller's contract is the instructions'.
            unsafe {
                barrier_cluster_arrive();
                barrier_cluster_wait();
            }
        }
        _ => { twin!(fa_sim::cluster::sync()) }
    }
}

/// As [`sync`], but that it orders nothing (`barrier.cluster.arrive.relaxed.aligned`) and so does not wait
/// for what was stored before: for blocks that stay only until others have read their shared memory.
///
/// # Safety
/// As [`sync`]. What this thread loaded from others has been used: a load that is on its way is not waited
/// for, and the memory that it reads may be gone.
#[inline(always)]
#[track_caller]
pub unsafe fn leave() {
    cfg_select! {
        target_arch = "nvptx64" => {
            // SAFETY: the caller's contract is the instructions'.
            unsafe {
                barrier_cluster_arrive_relaxed();
                barrier_cluster_wait();
            }
        }
        _ => { twin!(fa_sim::cluster::leave()) }
    }
}

/// Where `address` of the shared memory of block `rank` lies (`mapa.shared::cluster.u32`).
#[cfg(target_arch = "nvptx64")]
#[inline(always)]
fn at(rank: u32, address: u32) -> u32 {
    let mapped: u32;
    // SAFETY: no memory is accessed.
    unsafe {
        asm!("mapa.shared::cluster.u32 {0}, {1}, {2};",
            out(reg32) mapped, in(reg32) address, in(reg32) rank, options(pure, nomem, nostack));
    }
    mapped
}

/// Loads an fp32 of block `rank`'s shared memory (`ld.shared::cluster.f32`).
///
/// # Safety
/// The block is one of the cluster's, and has written it; between that and this, and between this and what
/// writes it next lies a [`sync`]; between this and its end that, or a [`leave`].
#[inline(always)]
#[track_caller]
pub unsafe fn load(rank: u32, address: u32) -> f32 {
    cfg_select! {
        target_arch = "nvptx64" => {
            let value: f32;
            // SAFETY: the caller's contract is the instruction's.
            unsafe {
                asm!("ld.shared::cluster.f32 {0}, [{1}];", out(reg32) value, in(reg32) at(rank, address),
                    options(readonly, nostack));
            }
            value
        }
        _ => { twin!(fa_sim::cluster::load::<f32>(rank, address)) }
    }
}

/// Loads four consecutive fp32 (`ld.shared::cluster.v4.f32`).
///
/// # Safety
/// As [`load`], 16-byte aligned.
#[inline(always)]
#[track_caller]
pub unsafe fn load4(rank: u32, address: u32) -> [f32; 4] {
    cfg_select! {
        target_arch = "nvptx64" => {
            let (a, b, c, d): (f32, f32, f32, f32);
            // SAFETY: the caller's contract is the instruction's.
            unsafe {
                asm!("ld.shared::cluster.v4.f32 {{{0}, {1}, {2}, {3}}}, [{4}];",
                    out(reg32) a, out(reg32) b, out(reg32) c, out(reg32) d, in(reg32) at(rank, address),
                    options(readonly, nostack));
            }
            [a, b, c, d]
        }
        _ => { twin!(fa_sim::cluster::load::<[f32; 4]>(rank, address)) }
    }
}
