//! What the warps of a warpgroup do to its products: issue, groups, completion.

use std::panic::Location;

use super::descriptor::{CHUNK, Descriptor};
use super::product::{self, K, M, WARP_ROWS};
use super::sums::{Accumulators, NONE};
use super::under_way::{Issue, Product, Reader};
use crate::block::{Block, Role};
use crate::error::{AccessKind, Error};
use crate::operation::Element;
use crate::operation::Operation;
use crate::race::Group;
use crate::shared::BASE;
use crate::threads::{LANES, WARPGROUP, WARPGROUP_WARPS, lanes};
use crate::warp::{Operands, Results};

impl Block {
    /// The warpgroup of the running thread.
    pub(super) fn warpgroup_index(&self, location: &'static Location<'static>) -> Result<usize, Box<Error>> {
        let index = self.current / WARPGROUP as usize;
        if index < self.warpgroups.len() {
            return Ok(index);
        }
        let reason = format!("threads {} on are no whole warpgroup", index * WARPGROUP as usize);
        Err(self.wgmma_error(location, reason))
    }

    /// All lanes of `warp` issue a product.
    pub(crate) fn issue_product(
        &mut self,
        warp: usize,
        operation: Operation,
        location: &'static Location<'static>,
    ) -> Result<[Results; LANES], Box<Error>> {
        let index = self.warpgroup_index(location)?;
        let issue = self.next_issue(index, warp, operation, location)?;
        let group = &mut self.warpgroups[index];
        let progress = &mut group.warps[warp % WARPGROUP_WARPS];
        if (issue.a.is_none() || issue.brought == NONE) && !progress.fenced {
            let reason = "no wgmma::fence since the last wgmma::wait_group, and the product takes registers that \
                          are not under way";
            return Err(self.wgmma_error(location, reason.into()));
        }
        let number = (progress.issued - group.first) as usize;
        progress.issued += 1;
        progress.open += 1;
        progress.last = Some(location);
        if number == group.products.len() {
            self.push_product(index, issue, location)?;
        }
        self.join_product(index, number, warp, issue, location)?;
        let product = &self.warpgroups[index].products[number];
        let poison = Accumulators::poison(product.tag);
        if product.is_issued() {
            self.begin_product(index, number)?;
        }
        Ok([[poison, 0, 0, 0]; LANES])
    }

    /// What the lanes of `warp` bring, which is the same for all of them.
    fn next_issue(
        &self,
        index: usize,
        warp: usize,
        operation: Operation,
        location: &'static Location<'static>,
    ) -> Result<Issue, Box<Error>> {
        let in_registers = matches!(operation, Operation::Wgmma { registers: true, .. });
        let operands = &self.warps[warp].operands;
        let [a0, a1, _, _, b0, b1, brought, ..] = operands[0];
        let is_uniform =
            |lane: &Operands| (in_registers || lane[..2] == [a0, a1]) && lane[4..7] == [b0, b1, brought];
        if !operands.iter().all(is_uniform) {
            let reason = "lanes of the warp bring different descriptors or accumulators";
            return Err(self.wgmma_error(location, reason.into()));
        }
        let join = |low: u32, high: u32| u64::from(low) | u64::from(high) << 32;
        Ok(Issue {
            site: location.into(),
            operation,
            a: (!in_registers).then_some(join(a0, a1)),
            b: join(b0, b1),
            group: self.warpgroups[index].warps[warp % WARPGROUP_WARPS].committed,
            brought,
        })
    }

    /// The first warp issues a product.
    fn push_product(
        &mut self,
        index: usize,
        issue: Issue,
        location: &'static Location<'static>,
    ) -> Result<(), Box<Error>> {
        let Operation::Wgmma { n, options, .. } = issue.operation else { return Ok(()) };
        if options.element == Element::E4m3 && (options.transposed_a || options.transposed_b) {
            let reason = "an operand is transposed, and those of 8-bit elements are K-major";
            return Err(self.wgmma_error(location, reason.into()));
        }
        let n = n as usize;
        let accumulators = &mut self.warpgroups[index].accumulators;
        let tag = accumulators.begin(issue.brought, n, issue.group, location);
        let tag = tag.map_err(|reason| self.wgmma_error(location, reason))?;
        self.warpgroups[index].products.push_back(Product {
            issue,
            options,
            n,
            a_bits: vec![0; if issue.a.is_none() { M * K } else { 0 }],
            tag,
            issued: 0,
            issuers: Group::default(),
            is_held: false,
            computed: false,
            location,
        });
        Ok(())
    }

    /// `warp` issues product `number`, which has to be the one that the first warp issued.
    fn join_product(
        &mut self,
        index: usize,
        number: usize,
        warp: usize,
        issue: Issue,
        location: &'static Location<'static>,
    ) -> Result<(), Box<Error>> {
        let own = warp % WARPGROUP_WARPS;
        let warpgroup = &mut self.warpgroups[index];
        let product = &mut warpgroup.products[number];
        if let Some(what) = product.issue.difference(&issue) {
            let reason = format!(
                "the warps of a warpgroup issue the same products, and another one issued this one at {} \
                 with other {what}",
                product.issue.site
            );
            return Err(self.wgmma_error(location, reason));
        }
        if issue.a.is_none() {
            let bits = &mut product.a_bits[own * WARP_ROWS * K..(own + 1) * WARP_ROWS * K];
            for (lane, &[a0, a1, a2, a3, ..]) in self.warps[warp].operands.iter().enumerate() {
                product::place_a(bits, lane, [a0, a1, a2, a3]);
            }
        }
        if issue.brought == NONE && product.options.accumulate {
            warpgroup.accumulators.set_rows(product.tag, own, &warpgroup.warps[own].staged);
        }
        if let Some(races) = &self.races {
            let threads = lanes(warp);
            threads.for_each(|thread| races.join_group(thread, &mut product.issuers));
        }
        product.issued |= 1 << own;
        Ok(())
    }

    /// All warps have issued a product: it reads its operands from now on.
    fn begin_product(&mut self, index: usize, number: usize) -> Result<(), Box<Error>> {
        let product = &self.warpgroups[index].products[number];
        let (location, group) = (product.location, product.issue.group);
        let chunks = self.chunks_of(product)?;
        for &chunk in &chunks {
            self.check_span(chunk, 16, AccessKind::Wgmma, location)?;
        }
        let reader = self.reader_in(index, group);
        if let (Some(races), Some(reader)) = (&mut self.races, reader) {
            let site = self.sites.intern_as(location, AccessKind::Wgmma);
            let offsets = chunks.iter().map(|&chunk| (chunk - BASE) as usize);
            let issuers = &self.warpgroups[index].products[number].issuers;
            if let Err(conflict) = races.read_by_group(issuers, reader.agent, offsets, site) {
                return Err(self.race(conflict, AccessKind::Wgmma, location));
            }
        }
        if let Some(&chunk) =
            chunks.iter().find(|&&chunk| !self.shared.is_written((chunk - BASE) as usize, 16))
        {
            let error = self.uninitialised(chunk, 16, AccessKind::Wgmma, location);
            self.suspect(error)?;
            self.warpgroups[index].products[number].is_held = true;
            return Ok(());
        }
        self.shared.bytes_read += 16 * chunks.len() as u64;
        if self.picker.draws_early() {
            self.compute_products(index, number + 1)?;
        }
        for own in 0..WARPGROUP_WARPS {
            let ready = self.warpgroups[index].warps[own].awaits;
            if let Some(groups) = ready.filter(|&groups| self.warpgroups[index].is_issued(groups)) {
                self.warpgroups[index].warps[own].awaits = None;
                let warp = index * WARPGROUP_WARPS + own;
                self.complete_groups(index, warp, groups)?;
                self.release(warp);
            }
        }
        Ok(())
    }

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

    /// The author of a warpgroup's reads, in the epoch of `group`.
    fn reader_in(&mut self, index: usize, group: u64) -> Option<Reader> {
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
    pub(crate) fn fence_products(
        &mut self,
        warp: usize,
        location: &'static Location<'static>,
    ) -> Result<(), Box<Error>> {
        let index = self.warpgroup_index(location)?;
        self.warpgroups[index].warps[warp % WARPGROUP_WARPS].fenced = true;
        Ok(())
    }

    /// All lanes of `warp` close a group.
    pub(crate) fn commit_products(
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
    pub(crate) fn wait_for_products(
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
    fn complete_groups(&mut self, index: usize, warp: usize, groups: u64) -> Result<(), Box<Error>> {
        let count =
            self.warpgroups[index].products.iter().take_while(|product| product.issue.group < groups).count();
        self.compute_products(index, count)?;
        if groups > 0
            && let Some(Reader { agent, base, .. }) = self.reader_in(index, groups)
            && let Some(races) = &mut self.races
        {
            let threads = lanes(warp);
            races.learn(threads, agent, base + (groups - 1) as u32);
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
    pub(crate) fn check_products_awaited(&mut self) {
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

    #[cold]
    pub(super) fn wgmma_error(&self, location: &'static Location<'static>, reason: String) -> Box<Error> {
        Box::new(Error::Wgmma {
            kernel: self.kernel.clone(),
            block: self.index,
            thread: self.current as u32,
            site: location.into(),
            reason,
        })
    }
}
