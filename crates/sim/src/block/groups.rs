//! Groups of products: which are closed, computed, and waited for.

use std::panic::Location;

use super::{Block, Role};
use crate::error::Error;
use crate::state::shared::BASE;
use crate::state::warpgroup::{Product, Reader};
use crate::tensor_core::descriptor::Descriptor;
use crate::tensor_core::wgmma::{CHUNK, K, M, gather_a, gather_b};
use crate::threads::{LANES, WARPGROUP, WARPGROUP_WARPS, lanes};

impl Block {
    /// Shared addresses of the chunks of both operands, those of A first.
    pub(super) fn chunks_of(&self, product: &Product) -> Result<Vec<u32>, Box<Error>> {
        let decode =
            |bits| Descriptor::decode(bits).map_err(|reason| self.wgmma_error(product.location, reason));
        let mut chunks = Vec::with_capacity((M + product.n) * K / CHUNK);
        if let Some(a) = product.issue.a {
            chunks.extend(decode(a)?.chunks(M, product.options.transposed_a));
        }
        chunks.extend(decode(product.issue.b)?.chunks(product.n, product.options.transposed_b));
        Ok(chunks)
    }

    /// Computes the first `count` products, unless that is done.
    pub(super) fn compute_products(&mut self, index: usize, count: usize) -> Result<(), Box<Error>> {
        for number in 0..count {
            let product = &self.warpgroups[index].products[number];
            if product.computed {
                continue;
            }
            let (n, options, tag) = (product.n, product.options, product.tag);
            let chunks = self.chunks_of(product)?;
            let values = chunks.iter().map(|&chunk| self.shared.get::<[u16; CHUNK]>((chunk - BASE) as usize));
            let (a, b) = if product.a_bits.is_empty() {
                let a = gather_a(values.clone().take(M * K / CHUNK), options.transposed_a);
                (a, gather_b(values.skip(M * K / CHUNK), n, options.transposed_b))
            } else {
                (product.a_bits.clone(), gather_b(values, n, options.transposed_b))
            };
            let warpgroup = &mut self.warpgroups[index];
            warpgroup.products[number].computed = true;
            warpgroup.accumulators.multiply(tag, &a, &b, n, options);
        }
        Ok(())
    }

    /// The author of a warpgroup's reads, in the epoch of `group`.
    pub(super) fn reader_in(&mut self, index: usize, group: u64) -> Option<Reader> {
        let races = self.races.as_mut()?;
        let reader = self.warpgroups[index].reader.get_or_insert_with(|| {
            let agent = races.new_agent();
            self.roles.push(Role::Products { warpgroup: index });
            Reader { agent, base: races.agent_epoch(agent), group: 0 }
        });
        while reader.group < group {
            races.end_epoch(reader.agent);
            reader.group += 1;
        }
        Some(*reader)
    }

    /// All lanes of `warp` fence.
    pub(super) fn fence_products(
        &mut self,
        warp: usize,
        location: &'static Location<'static>,
    ) -> Result<(), Box<Error>> {
        let index = self.warpgroup_index(location)?;
        self.warpgroups[index].warps[warp % WARPGROUP_WARPS].fenced = true;
        Ok(())
    }

    /// All lanes of `warp` close a group.
    pub(super) fn commit_products(
        &mut self,
        warp: usize,
        location: &'static Location<'static>,
    ) -> Result<(), Box<Error>> {
        let index = self.warpgroup_index(location)?;
        let progress = &mut self.warpgroups[index].warps[warp % WARPGROUP_WARPS];
        progress.committed += 1;
        progress.open = 0;
        Ok(())
    }

    /// All lanes of `warp` wait; whether they may go on.
    pub(super) fn wait_for_products(
        &mut self,
        warp: usize,
        pending: u32,
        location: &'static Location<'static>,
    ) -> Result<bool, Box<Error>> {
        let index = self.warpgroup_index(location)?;
        let warpgroup = &mut self.warpgroups[index];
        let progress = &mut warpgroup.warps[warp % WARPGROUP_WARPS];
        let groups = progress.committed.saturating_sub(pending.into());
        if !warpgroup.is_issued(groups) {
            warpgroup.warps[warp % WARPGROUP_WARPS].awaits = Some(groups);
            return Ok(false);
        }
        self.complete_groups(index, warp, groups)?;
        Ok(true)
    }

    /// The groups before `groups` are complete, as `warp` knows from now on.
    pub(super) fn complete_groups(
        &mut self,
        index: usize,
        warp: usize,
        groups: u64,
    ) -> Result<(), Box<Error>> {
        let count =
            self.warpgroups[index].products.iter().take_while(|product| product.issue.group < groups).count();
        self.compute_products(index, count)?;
        if groups > 0
            && let Some(Reader { agent, base, .. }) = self.reader_in(index, groups)
            && let Some(races) = &mut self.races
        {
            races.learn(lanes(warp), agent, base + (groups - 1) as u32);
        }
        let warpgroup = &mut self.warpgroups[index];
        let progress = &mut warpgroup.warps[warp % WARPGROUP_WARPS];
        progress.complete = progress.complete.max(groups);
        progress.fenced = false;
        let everywhere = warpgroup.warps.iter().map(|progress| progress.complete).min().unwrap_or(0);
        while warpgroup.products.front().is_some_and(|product| product.issue.group < everywhere) {
            warpgroup.products.pop_front();
            warpgroup.first += 1;
        }
        Ok(())
    }

    /// Fails the launch if the running thread returns before its products are complete and their sums taken.
    pub(super) fn check_products_awaited(&mut self) {
        let (warp, lane) = (self.current / LANES % WARPGROUP_WARPS, self.current % LANES);
        let Some(warpgroup) = self.warpgroups.get(self.current / WARPGROUP as usize) else { return };
        let progress = &warpgroup.warps[warp];
        let left = warpgroup.accumulators.left(warp, lane);
        let (location, reason) = match (progress.last, left) {
            (Some(last), _) if progress.open > 0 => {
                (last, "no wgmma::commit_group closes the group of this product")
            }
            (Some(last), _) if progress.complete < progress.committed => {
                (last, "no wgmma::wait_group of the thread covers this product")
            }
            (Some(_), Some(location)) => (
                location,
                "no wgmma::wait_group has been given the accumulator of this product, or it has been overwritten \
                 under way",
            ),
            _ => return,
        };
        let error = self.wgmma_error(location, reason.into());
        self.fail(*error);
    }
}
