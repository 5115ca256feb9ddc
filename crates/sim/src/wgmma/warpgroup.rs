//! The products of a warpgroup: issue, groups, completion.

use std::collections::VecDeque;
use std::panic::Location;

use super::descriptor::{CHUNK, Descriptor};
use super::product::{self, K, M, WARP_ROWS};
use super::{Options, WARPGROUP, WARPGROUP_WARPS};
use crate::WARP;
use crate::block::{Block, Role};
use crate::error::{AccessKind, Error};
use crate::operation::Operation;
use crate::race::Group;
use crate::shared::BASE;
use crate::warp::{Operands, Results};

const LANES: usize = WARP as usize;

/// Bits of a signalling NaN; the tag of an accumulator is in the bits below.
const SIGNALLING: u32 = 0x7f80_0000;
const QUIET: u32 = 0x7fc0_0000;
const TAGS: u32 = 0x003f_ffff;

/// The tag of an accumulator that is not under way.
const NONE: u32 = 0;

/// The products of a warpgroup that are under way.
#[derive(Default)]
pub(crate) struct Warpgroup {
    warps: [Progress; WARPGROUP_WARPS],
    /// Those not complete for all warps, the oldest first.
    products: VecDeque<Product>,
    /// Number of `products[0]`.
    first: u64,
    accumulators: Vec<Accumulator>,
    tags: u32,
    reader: Option<Reader>,
}

/// The author of the reads of a warpgroup's products.
#[derive(Clone, Copy)]
struct Reader {
    agent: usize,
    /// Its epoch in group 0.
    base: u32,
    /// The group whose epoch it is in.
    group: u64,
}

/// How far one warp is.
#[derive(Default)]
struct Progress {
    /// Products issued.
    issued: u64,
    /// Groups closed.
    committed: u64,
    /// Products in no group yet.
    open: u64,
    /// Groups complete.
    complete: u64,
    /// Whether it has fenced since its last wait.
    fenced: bool,
    /// The number of groups that it waits for.
    awaits: Option<u64>,
    /// Its rows of the accumulator that its lanes bring to the next product.
    staged: Vec<f32>,
    /// Where it issued its last product.
    last: Option<&'static Location<'static>>,
}

/// One product under way.
struct Product {
    operation: Operation,
    options: Options,
    n: usize,
    /// The descriptor of A; `None` where it is in registers.
    a: Option<u64>,
    /// A from registers.
    a_bits: Vec<u16>,
    b: u64,
    /// The tag that the lanes brought.
    brought: u32,
    tag: u32,
    group: u64,
    /// One bit for each warp that has issued it.
    issued: u32,
    issuers: Group,
    computed: bool,
    location: &'static Location<'static>,
}

impl Product {
    fn is_issued(&self) -> bool {
        self.issued == (1 << WARPGROUP_WARPS) - 1
    }
}

/// An accumulator under way.
struct Accumulator {
    tag: u32,
    n: usize,
    /// M × n, by rows.
    sums: Vec<f32>,
    /// The group of its last product.
    group: u64,
    /// By warp, one bit for each lane that has taken its part.
    taken: [u32; WARPGROUP_WARPS],
    location: &'static Location<'static>,
}

impl Warpgroup {
    fn accumulator(&mut self, tag: u32) -> Option<&mut Accumulator> {
        self.accumulators.iter_mut().find(|accumulator| accumulator.tag == tag)
    }

    /// Whether all products of the groups before `groups` are issued by all warps.
    fn is_issued(&self, groups: u64) -> bool {
        let first = self.products.iter().find(|product| !product.is_issued());
        first.is_none_or(|product| product.group >= groups)
    }
}

impl Block {
    /// The warpgroup of the running thread.
    fn warpgroup_index(&self, location: &'static Location<'static>) -> Result<usize, Box<Error>> {
        let index = self.current / WARPGROUP as usize;
        if index < self.warpgroups.len() {
            return Ok(index);
        }
        let reason = format!("threads {} on are no whole warpgroup", index * WARPGROUP as usize);
        Err(self.wgmma_error(location, reason))
    }

    /// The tag of an accumulator, or, if it is not under way and `accumulate`, a copy of it.
    pub(super) fn stage_accumulator(
        &mut self,
        accumulator: &[f32],
        accumulate: bool,
        location: &'static Location<'static>,
    ) -> Result<u32, Box<Error>> {
        let n = 2 * accumulator.len();
        if !(8..=256).contains(&n) || !n.is_multiple_of(8) {
            let reason = format!("n is {n}, not a multiple of 8 from 8 to 256");
            return Err(self.wgmma_error(location, reason));
        }
        let tag = self.tag_of(accumulator, location)?;
        if tag == NONE && accumulate {
            let (warp, lane) = (self.current / LANES, self.current % LANES);
            let index = self.warpgroup_index(location)?;
            let staged = &mut self.warpgroups[index].warps[warp % WARPGROUP_WARPS].staged;
            staged.resize(WARP_ROWS * n, 0.0);
            for (element, &value) in accumulator.iter().enumerate() {
                let (row, column) = product::accumulator_place(lane, element);
                staged[row * n + column] = value;
            }
        }
        Ok(tag)
    }

    /// The tag that all elements of an accumulator hold; [`NONE`] where it is not under way.
    fn tag_of(
        &mut self,
        accumulator: &[f32],
        location: &'static Location<'static>,
    ) -> Result<u32, Box<Error>> {
        let first = accumulator.first().map_or(0, |element| element.to_bits());
        let is_tagged = |bits: u32| bits & !TAGS == SIGNALLING && bits & TAGS != 0;
        let same = accumulator.iter().all(|element| element.to_bits() == first);
        if same && is_tagged(first) {
            return Ok(first & TAGS);
        }
        let index = self.warpgroup_index(location)?;
        for element in accumulator {
            let bits = element.to_bits();
            let touched = is_tagged(bits) || bits & QUIET == QUIET && bits & TAGS != 0;
            if touched && let Some(product) = self.warpgroups[index].accumulator(bits & TAGS) {
                let reason = format!(
                    "its accumulator has been used before the wgmma::wait_group that names it and covers the \
                     product at {}",
                    crate::Site::from(product.location)
                );
                return Err(self.wgmma_error(location, reason));
            }
        }
        Ok(NONE)
    }

    /// All lanes of `warp` issue a product.
    pub(crate) fn issue_product(
        &mut self,
        warp: usize,
        operation: Operation,
        location: &'static Location<'static>,
    ) -> Result<[Results; LANES], Box<Error>> {
        let Operation::Wgmma { n, registers, options } = operation else { return Ok([[0; 4]; LANES]) };
        let index = self.warpgroup_index(location)?;
        let operands = self.warps[warp].operands;
        let [a0, a1, _, _, b0, b1, brought, ..] = operands[0];
        let uniform =
            |lane: &Operands| (registers || lane[..2] == [a0, a1]) && lane[4..7] == [b0, b1, brought];
        if !operands.iter().all(uniform) {
            let reason = "lanes of the warp bring different descriptors or accumulators".into();
            return Err(self.wgmma_error(location, reason));
        }
        let join = |low: u32, high: u32| u64::from(low) | u64::from(high) << 32;
        let (a, b) = ((!registers).then_some(join(a0, a1)), join(b0, b1));
        let own = warp % WARPGROUP_WARPS;
        let group = &mut self.warpgroups[index];
        let progress = &mut group.warps[own];
        if (registers || brought == NONE) && !progress.fenced {
            let reason = "no wgmma::fence since the last wgmma::wait_group, and the product takes registers that \
                          are not under way";
            return Err(self.wgmma_error(location, reason.into()));
        }
        let number = (progress.issued - group.first) as usize;
        progress.issued += 1;
        progress.open += 1;
        progress.last = Some(location);
        let wgmma_group = progress.committed;
        if number == group.products.len() {
            let tag = self.begin_sums(index, brought, n as usize, wgmma_group, location)?;
            self.warpgroups[index].products.push_back(Product {
                operation,
                options,
                n: n as usize,
                a,
                a_bits: vec![0; if registers { M * K } else { 0 }],
                b,
                brought,
                tag,
                group: wgmma_group,
                issued: 0,
                issuers: Group::default(),
                computed: false,
                location,
            });
        }
        self.join_product(index, number, warp, (operation, a, b, brought, wgmma_group), location)?;
        let product = &self.warpgroups[index].products[number];
        let poison = SIGNALLING | product.tag;
        if product.is_issued() {
            self.begin_product(index, number)?;
        }
        Ok([[poison, 0, 0, 0]; LANES])
    }

    /// The tag of the accumulator of a product that the first warp issues.
    fn begin_sums(
        &mut self,
        index: usize,
        brought: u32,
        n: usize,
        group: u64,
        location: &'static Location<'static>,
    ) -> Result<u32, Box<Error>> {
        let warpgroup = &mut self.warpgroups[index];
        if brought == NONE {
            warpgroup.tags = warpgroup.tags % TAGS + 1;
            let tag = warpgroup.tags;
            let sums = vec![0.0; M * n];
            let taken = [0; WARPGROUP_WARPS];
            warpgroup.accumulators.push(Accumulator { tag, n, sums, group, taken, location });
            return Ok(tag);
        }
        let reason = match warpgroup.accumulator(brought) {
            Some(accumulator) if accumulator.n == n => {
                (accumulator.group, accumulator.location) = (group, location);
                return Ok(brought);
            }
            Some(accumulator) => format!("n is {n} for an accumulator under way with n = {}", accumulator.n),
            None => String::from("its accumulator is a copy of one whose sums have been taken"),
        };
        Err(self.wgmma_error(location, reason))
    }

    /// `warp` issues product `number`, which has to be the one that the first warp issued.
    fn join_product(
        &mut self,
        index: usize,
        number: usize,
        warp: usize,
        issued: (Operation, Option<u64>, u64, u32, u64),
        location: &'static Location<'static>,
    ) -> Result<(), Box<Error>> {
        let own = warp % WARPGROUP_WARPS;
        let warpgroup = &mut self.warpgroups[index];
        let product = &mut warpgroup.products[number];
        let first = (product.operation, product.a, product.b, product.brought, product.group);
        let (here, there) = (crate::Site::from(location), crate::Site::from(product.location));
        if first != issued || here != there {
            let what = match (first, issued) {
                _ if here != there => "places",
                ((operation, ..), (other, ..)) if operation != other => "operations",
                ((_, a, b, ..), (_, other_a, other_b, ..)) if (a, b) != (other_a, other_b) => "descriptors",
                ((.., group), (.., other)) if group != other => "groups",
                _ => "accumulators",
            };
            let reason = format!(
                "the warps of a warpgroup issue the same products, and another one issued this one at {there} \
                 with other {what}"
            );
            return Err(self.wgmma_error(location, reason));
        }
        let rows = own * WARP_ROWS..(own + 1) * WARP_ROWS;
        if product.a.is_none() {
            let bits = &mut product.a_bits[rows.start * K..rows.end * K];
            for (lane, &[a0, a1, a2, a3, ..]) in self.warps[warp].operands.iter().enumerate() {
                product::place_a(bits, lane, [a0, a1, a2, a3]);
            }
        }
        if product.brought == NONE && product.options.accumulate {
            let (tag, n) = (product.tag, product.n);
            let accumulators = &mut warpgroup.accumulators;
            if let Some(accumulator) = accumulators.iter_mut().find(|accumulator| accumulator.tag == tag) {
                accumulator.sums[rows.start * n..rows.end * n].copy_from_slice(&warpgroup.warps[own].staged);
            }
        }
        if let Some(races) = &self.races {
            let lanes = warp * LANES..(warp + 1) * LANES;
            lanes.for_each(|thread| races.join_group(thread, &mut product.issuers));
        }
        product.issued |= 1 << own;
        Ok(())
    }

    /// All warps have issued a product: it reads its operands from now on.
    fn begin_product(&mut self, index: usize, number: usize) -> Result<(), Box<Error>> {
        let product = &self.warpgroups[index].products[number];
        let (location, group) = (product.location, product.group);
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
            return Err(self.uninitialised(chunk, 16, AccessKind::Wgmma, location));
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
    fn chunks_of(&self, product: &Product) -> Result<Vec<u32>, Box<Error>> {
        let decode =
            |bits| Descriptor::decode(bits).map_err(|reason| self.wgmma_error(product.location, reason));
        let mut chunks = Vec::with_capacity((M + product.n) * K / CHUNK);
        if let Some(a) = product.a {
            chunks.extend(decode(a)?.chunks(M, product.options.transposed_a));
        }
        chunks.extend(decode(product.b)?.chunks(product.n, product.options.transposed_b));
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

    /// Computes the first `count` products, unless that is done.
    fn compute_products(&mut self, index: usize, count: usize) -> Result<(), Box<Error>> {
        for number in 0..count {
            let product = &self.warpgroups[index].products[number];
            if product.computed {
                continue;
            }
            let (n, options) = (product.n, product.options);
            let chunks = self.chunks_of(product)?;
            let values = chunks.iter().map(|&chunk| self.shared.get::<[u16; CHUNK]>((chunk - BASE) as usize));
            let (a, b) = if product.a.is_some() {
                let a = product::gather_a(values.clone().take(M * K / CHUNK), options.transposed_a);
                (a, product::gather_b(values.skip(M * K / CHUNK), n, options.transposed_b))
            } else {
                (product.a_bits.clone(), product::gather_b(values, n, options.transposed_b))
            };
            let tag = product.tag;
            let warpgroup = &mut self.warpgroups[index];
            warpgroup.products[number].computed = true;
            if let Some(accumulator) = warpgroup.accumulator(tag) {
                if !options.accumulate {
                    accumulator.sums.fill(0.0);
                }
                product::multiply_add(&mut accumulator.sums, &a, &b, n, options.element);
            }
        }
        Ok(())
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
        pending: usize,
        location: &'static Location<'static>,
    ) -> Result<bool, Box<Error>> {
        let index = self.warpgroup_index(location)?;
        let warpgroup = &mut self.warpgroups[index];
        let progress = &mut warpgroup.warps[warp % WARPGROUP_WARPS];
        let groups = progress.committed.saturating_sub(pending as u64);
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
            self.warpgroups[index].products.iter().take_while(|product| product.group < groups).count();
        self.compute_products(index, count)?;
        if groups > 0
            && let Some(Reader { agent, base, .. }) = self.reader_in(index, groups)
            && let Some(races) = &mut self.races
        {
            let lanes = warp * LANES..(warp + 1) * LANES;
            races.learn(lanes, agent, base + (groups - 1) as u32);
        }
        let warpgroup = &mut self.warpgroups[index];
        let progress = &mut warpgroup.warps[warp % WARPGROUP_WARPS];
        progress.complete = progress.complete.max(groups);
        progress.fenced = false;
        let everywhere = warpgroup.warps.iter().map(|progress| progress.complete).min().unwrap_or(0);
        while warpgroup.products.front().is_some_and(|product| product.group < everywhere) {
            warpgroup.products.pop_front();
            warpgroup.first += 1;
        }
        Ok(())
    }

    /// Gives the running thread the sums of its accumulator, if it is under way and they are complete.
    pub(super) fn take_sums(
        &mut self,
        accumulator: &mut [f32],
        location: &'static Location<'static>,
    ) -> Result<(), Box<Error>> {
        let tag = self.tag_of(accumulator, location)?;
        if tag == NONE {
            return Ok(());
        }
        let index = self.warpgroup_index(location)?;
        let (warp, lane) = (self.current / LANES % WARPGROUP_WARPS, self.current % LANES);
        let warpgroup = &mut self.warpgroups[index];
        let complete = warpgroup.warps[warp].complete;
        let Some(from) = warpgroup.accumulator(tag) else {
            let reason = "its accumulator is a copy of one whose sums have been taken".into();
            return Err(self.wgmma_error(location, reason));
        };
        if from.group >= complete {
            return Ok(());
        }
        let n = from.n;
        let sums = &from.sums[warp * WARP_ROWS * n..];
        for (element, value) in accumulator.iter_mut().enumerate() {
            let (row, column) = product::accumulator_place(lane, element);
            *value = sums[row * n + column];
        }
        from.taken[warp] |= 1 << lane;
        if from.taken == [u32::MAX; WARPGROUP_WARPS] {
            warpgroup.accumulators.retain(|accumulator| accumulator.tag != tag);
        }
        Ok(())
    }

    /// Fails the launch if the running thread returns before its products are complete and their sums taken.
    pub(crate) fn check_products_awaited(&mut self) {
        let (warp, lane) = (self.current / LANES % WARPGROUP_WARPS, self.current % LANES);
        let Some(warpgroup) = self.warpgroups.get(self.current / WARPGROUP as usize) else { return };
        let progress = &warpgroup.warps[warp];
        let left = warpgroup.accumulators.iter().find(|left| left.taken[warp] & (1 << lane) == 0);
        let (location, reason) = match (progress.last, left) {
            (Some(last), _) if progress.open > 0 => {
                (last, "no wgmma::commit_group closes the group of this product")
            }
            (Some(last), _) if progress.complete < progress.committed => {
                (last, "no wgmma::wait_group of the thread covers this product")
            }
            (Some(_), Some(left)) => (
                left.location,
                "no wgmma::wait_group has been given the accumulator of this product, or it has been overwritten \
                 under way",
            ),
            _ => return,
        };
        let error = self.wgmma_error(location, reason.into());
        self.fail(*error);
    }

    #[cold]
    fn wgmma_error(&self, location: &'static Location<'static>, reason: String) -> Box<Error> {
        Box::new(Error::Wgmma {
            kernel: self.kernel.clone(),
            block: self.index,
            thread: self.current as u32,
            site: location.into(),
            reason,
        })
    }
}
