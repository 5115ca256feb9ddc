//! What the warps of a warpgroup issue together.

use std::panic::Location;

use super::Block;
use crate::error::{AccessKind, Error};
use crate::operation::{Element, Operands, Operation, Results};
use crate::race::Group;
use crate::state::accumulators::{Accumulators, NONE};
use crate::state::shared::BASE;
use crate::state::warpgroup::{Issue, Product};
use crate::tensor_core::wgmma::{K, M, WARP_ROWS, place_a};
use crate::threads::{LANES, WARPGROUP_WARPS, lanes};

impl Block {
    /// All lanes of `warp` issue a product.
    pub(super) fn issue_product(
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
                place_a(bits, lane, [a0, a1, a2, a3]);
            }
        }
        if issue.brought == NONE && product.options.accumulate {
            warpgroup.accumulators.set_rows(product.tag, own, &warpgroup.warps[own].staged);
        }
        if let Some(races) = &self.races {
            lanes(warp).for_each(|thread| races.join_group(thread, &mut product.issuers));
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
}
