//! Memory in which tensors lie with canaries before, between and behind them: NaN in every storage type.
//!
//! One image has all inputs of a problem and another all outputs. A GPU gets copies of both at addresses that
//! are as far from multiples of 256 bytes.

use std::ops::Range;

use flash_attention::Element;

use super::outcome::{Failure, Kind};

/// Bytes of canary before the first element and behind the last, at least.
pub(super) const MARGIN: usize = 64;

/// Device allocations start at multiples of this.
const ALIGNMENT: usize = 256;

/// What no tensor's element lies in: NaN in fp32, fp16, bf16 and e4m3.
pub(super) const INPUT_CANARY: [u8; 2] = [0xff, 0xff];

/// Another NaN in the types that outputs have, so that a gap of an input that was copied to one of an output
/// shows.
pub(super) const OUTPUT_CANARY: [u8; 2] = [0xf5, 0x7f];

/// Where a tensor lies in an image: from its first element to the last that its view reaches.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Slot {
    pub(super) start: usize,
    bytes: usize,
}

/// Bytes at a multiple of 256, filled with a canary.
#[derive(Debug)]
pub(super) struct Image {
    /// Longer than needed, so that it holds a multiple of 256 to start at.
    memory: Vec<u128>,
    canary: [u8; 2],
    first: usize,
    len: usize,
}

impl Image {
    pub(super) fn new(canary: [u8; 2]) -> Self {
        Self { memory: Vec::new(), canary, first: 0, len: 0 }
    }

    /// Empties it: places given before are void.
    pub(super) fn clear(&mut self) {
        self.len = 0;
    }

    /// A place for `elements` elements of `size` bytes, so many elements behind a multiple of 256 bytes.
    pub(super) fn reserve(&mut self, (elements, size): (usize, usize), offset: usize) -> Slot {
        // Behind a multiple of 256, the margin keeps the distance that the offset says.
        let start =
            self.len.next_multiple_of(ALIGNMENT) + ALIGNMENT + (offset % ALIGNMENT * size) % ALIGNMENT;
        let slot = Slot { start, bytes: elements * size };
        self.len = (start + slot.bytes + MARGIN).next_multiple_of(ALIGNMENT);
        slot
    }

    /// Bytes of all that was reserved.
    pub(super) const fn len(&self) -> usize {
        self.len
    }

    /// Fills everything with the canary.
    pub(super) fn fill(&mut self) {
        let words = (self.len + ALIGNMENT) / size_of::<u128>();
        if self.memory.len() < words {
            self.memory = vec![0; words];
        }
        self.first = self.memory.as_ptr().addr().next_multiple_of(ALIGNMENT) - self.memory.as_ptr().addr();
        let [low, high] = self.canary.map(u128::from);
        let word = (0..8).fold(0, |word, index| word | (low | high << 8) << (16 * index));
        self.memory[..words].fill(word);
    }

    pub(super) fn bytes(&self) -> &[u8] {
        let words = &self.memory[..];
        // SAFETY: the vector's words are initialised, and bytes have no alignment.
        let bytes = unsafe { std::slice::from_raw_parts(words.as_ptr().cast::<u8>(), size_of_val(words)) };
        &bytes[self.first..][..self.len]
    }

    pub(super) fn bytes_mut(&mut self) -> &mut [u8] {
        let words = &mut self.memory[..];
        let len = size_of_val(words);
        // SAFETY: the vector's words are initialised, any bytes are words, and bytes have no alignment.
        let bytes = unsafe { std::slice::from_raw_parts_mut(words.as_mut_ptr().cast::<u8>(), len) };
        &mut bytes[self.first..][..self.len]
    }

    /// A tensor's elements and the canaries behind them.
    pub(super) fn values<T: Element>(&self, slot: Slot) -> &[T] {
        elements(&self.bytes()[slot.range()])
    }

    /// As [`Self::values`], to be written.
    pub(super) fn values_mut<T: Element>(&mut self, slot: Slot) -> &mut [T] {
        elements_mut(&mut self.bytes_mut()[slot.range()])
    }

    /// The bytes of several tensors and the canaries behind each.
    pub(super) fn split<const N: usize>(&mut self, slots: [Slot; N]) -> [&mut [u8]; N] {
        let split = self.bytes_mut().get_disjoint_mut(slots.map(|slot| slot.range()));
        split.expect("`reserve` gives no byte twice")
    }

    /// Writes whole words of 4 bytes to a place.
    pub(super) fn put(&mut self, slot: Slot, words: impl Iterator<Item = [u8; 4]>) {
        let bytes = self.bytes_mut()[slot.range()].chunks_exact_mut(4);
        bytes.zip(words).for_each(|(to, from)| to.copy_from_slice(&from));
    }

    /// Checks that all bytes but those of `outputs` hold the canary, and none of those does.
    ///
    /// # Errors
    /// Names the tensor, how many of its neighbours were written, and the first.
    pub(super) fn check(&self, outputs: &[Written]) -> Result<(), Failure> {
        let mut rows: Vec<_> = outputs.iter().flat_map(Written::ranges).collect();
        rows.sort_unstable_by_key(|(range, _)| range.start);
        let (mut end, mut overwritten, mut first) = (0, 0, None);
        let whole = [(self.len..self.len, "")];
        for (range, _) in rows.into_iter().chain(whole) {
            let gap = &self.bytes()[end..range.start.max(end)];
            if !is_canary(gap, self.canary) {
                let changed = |pair: &[u8]| pair != self.canary;
                first = first.or(gap.chunks(2).position(changed).map(|index| end + 2 * index));
                overwritten += 2 * gap.chunks(2).filter(|pair| changed(pair)).count();
            }
            end = end.max(range.end);
        }
        let Some(at) = first else { return Ok(()) };
        let distance = |output: &&Written| {
            let Range { start, end } = output.slot.whole();
            start.saturating_sub(at).max(at.saturating_sub(end))
        };
        let near = outputs.iter().min_by_key(distance);
        let place = near.map_or(String::new(), |output| output.place(at));
        Err(Failure::new(
            Kind::Overwritten,
            format!("{overwritten} bytes outside of outputs were written, first {place}"),
        ))
    }
}

impl Slot {
    /// The tensor, and the canaries behind it.
    fn range(self) -> Range<usize> {
        self.start..self.start + self.bytes + MARGIN
    }

    fn whole(self) -> Range<usize> {
        self.start..self.start + self.bytes
    }
}

/// The rows of an output that a problem writes.
#[derive(Debug)]
pub(super) struct Written {
    pub(super) name: &'static str,
    pub(super) slot: Slot,
    /// Bytes of an element.
    pub(super) size: usize,
    /// First element and number of elements of each row.
    pub(super) rows: Vec<(usize, usize)>,
}

impl Written {
    fn ranges(&self) -> impl Iterator<Item = (Range<usize>, &'static str)> {
        self.rows.iter().map(|&(first, len)| {
            let start = self.slot.start + first * self.size;
            (start..start + len * self.size, self.name)
        })
    }

    /// A byte by what is near it.
    fn place(&self, byte: usize) -> String {
        let Some(offset) = byte.checked_sub(self.slot.start) else {
            return format!("{} bytes before {}", self.slot.start - byte, self.name);
        };
        let element = offset / self.size;
        let before = self.rows.iter().filter(|(first, len)| first + len <= element);
        match before.max_by_key(|(first, _)| first) {
            Some((first, len)) => {
                let past = element - (first + len) + 1;
                format!(
                    "element {element} of {}, {past} past the row of {len} from element {first}",
                    self.name
                )
            }
            None => format!("element {element} of {}, before its rows", self.name),
        }
    }

    /// Checks that each element was written, and is a number.
    ///
    /// # Errors
    /// Names the tensor and the first element that is not.
    pub(super) fn check<T: Element>(&self, image: &Image, may_be_infinite: bool) -> Result<(), Failure> {
        let values = image.values::<T>(self.slot);
        let wrong = |value: &T| {
            let value = value.to_f32();
            value.is_nan() || (value.is_infinite() && !may_be_infinite)
        };
        let mut count = 0;
        let mut found = None;
        for &(first, len) in &self.rows {
            let row = &values[first..][..len];
            if let Some(index) = row.iter().position(wrong) {
                found = found.or(Some(first + index));
                count += row.iter().filter(|value| wrong(value)).count();
            }
        }
        let Some(element) = found else { return Ok(()) };
        let what = format!(
            "{count} elements of {} were left unwritten or are no numbers, first element {element}, which is {}",
            self.name,
            values[element].to_f32()
        );
        Err(Failure::new(Kind::Unwritten, what))
    }
}

fn is_canary(bytes: &[u8], canary: [u8; 2]) -> bool {
    let [low, high] = canary;
    // Without an early end, so that it is done in vectors.
    let differs = |bits: u8, pair: &[u8]| bits | (pair[0] ^ low) | (pair[1] ^ high);
    bytes.chunks_exact(2).fold(0, differs) == 0
}

/// Bytes as elements; a rest that fills none is left out.
pub(super) fn elements<T: Element>(bytes: &[u8]) -> &[T] {
    assert!(
        bytes.as_ptr().cast::<T>().is_aligned(),
        "`reserve` starts tensors at multiples of their element"
    );
    // SAFETY: the bytes are aligned and live, and any of them are elements of each type that is one: f32,
    // f16, bf16 and e4m3.
    unsafe { std::slice::from_raw_parts(bytes.as_ptr().cast(), bytes.len() / size_of::<T>()) }
}

/// As [`elements`], to be written.
pub(super) fn elements_mut<T: Element>(bytes: &mut [u8]) -> &mut [T] {
    assert!(
        bytes.as_ptr().cast::<T>().is_aligned(),
        "`reserve` starts tensors at multiples of their element"
    );
    // SAFETY: as in `elements`, and the borrow is exclusive.
    unsafe { std::slice::from_raw_parts_mut(bytes.as_mut_ptr().cast(), bytes.len() / size_of::<T>()) }
}

#[cfg(test)]
mod tests {
    use super::*;
    use half::{bf16, f16};

    /// Two rows of three elements, two apart, five elements behind a multiple of 256 bytes.
    fn image() -> (Image, Written) {
        let mut image = Image::new(OUTPUT_CANARY);
        let slot = image.reserve((8, 2), 5);
        image.fill();
        (image, Written { name: "o", slot, size: 2, rows: vec![(0, 3), (5, 3)] })
    }

    #[test]
    fn canaries_are_nan_and_tensors_lie_as_asked() {
        let (image, o) = image();
        assert!(image.values::<f16>(o.slot).iter().all(|value| value.is_nan()));
        assert!(image.values::<bf16>(o.slot).iter().all(|value| value.is_nan()));
        assert_eq!(image.values::<f16>(o.slot).as_ptr().addr() % 256, 10);
        let mut inputs = Image::new(INPUT_CANARY);
        let (byte, word) = (inputs.reserve((4, 1), 3), inputs.reserve((4, 4), 1));
        inputs.fill();
        assert!(inputs.values::<float8::F8E4M3>(byte).iter().all(|value| value.to_f32().is_nan()));
        assert!(inputs.values::<f32>(word).iter().all(|value| value.is_nan()));
    }

    #[test]
    fn a_write_outside_of_rows_is_found_and_named() {
        let (mut image, o) = image();
        for &(first, len) in &o.rows {
            image.values_mut::<f16>(o.slot)[first..][..len].fill(f16::ONE);
        }
        image.check(std::slice::from_ref(&o)).unwrap();
        o.check::<f16>(&image, false).unwrap();
        image.values_mut::<f16>(o.slot)[4] = f16::ZERO;
        let failure = image.check(std::slice::from_ref(&o)).unwrap_err();
        assert_eq!(
            failure.to_string(),
            "2 bytes outside of outputs were written, first element 4 of o, 2 past the row of 3 from element 0"
        );
        let (mut image, o) = image_with(9, f16::ZERO);
        assert!(
            image.check(std::slice::from_ref(&o)).unwrap_err().to_string().contains("element 9 of o, 2 past")
        );
        image.fill();
        image.bytes_mut()[o.slot.start - 2] = 0;
        assert!(image.check(&[o]).unwrap_err().to_string().ends_with("first 2 bytes before o"));
    }

    fn image_with(element: usize, value: f16) -> (Image, Written) {
        let (mut image, o) = image();
        image.values_mut::<f16>(o.slot)[element] = value;
        (image, o)
    }

    #[test]
    fn an_element_that_was_not_written_is_found() {
        let (mut image, o) = image_with(0, f16::ONE);
        let failure = o.check::<f16>(&image, false).unwrap_err().to_string();
        assert!(failure.starts_with("5 elements of o were left unwritten"), "{failure}");
        for &(first, len) in &o.rows {
            image.values_mut::<f16>(o.slot)[first..][..len].fill(f16::NEG_INFINITY);
        }
        o.check::<f16>(&image, true).unwrap();
        assert!(o.check::<f16>(&image, false).is_err());
    }
}
