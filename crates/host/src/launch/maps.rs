//! Tensor maps of Q, K, V and O for `forward_sm90`.

use fa_kernels::attention::alignment::head_offset::HeadOffset;
use fa_kernels::attention::alignment::residues::Residues;
use fa_kernels::config::Sm90Config;
use fa_kernels::ptx::tma;

use crate::plan::class_layout;
use crate::tensor_map::{Dimension, TensorMap, swizzled};
use crate::{Result, TensorLayout};

/// The maps of a tensor's classes of heads, in boxes of so many rows; in place of those that it lacks, the
/// first.
pub(super) fn class_maps(
    (address, element_bytes): (u64, u32),
    layout: &TensorLayout,
    rows: u32,
    encode: impl Fn(&TensorMap) -> Result<tma::TensorMap>,
) -> Result<[tma::TensorMap; HeadOffset::MAX_CLASSES]> {
    let at = (address, element_bytes);
    let mut maps = [encode(&class_map(at, layout, rows, 0))?; HeadOffset::MAX_CLASSES];
    let classes = HeadOffset::classes(layout.stride_head as u64).min(layout.heads);
    for (class, map) in maps.iter_mut().enumerate().take(classes).skip(1) {
        *map = encode(&class_map(at, layout, rows, class))?;
    }
    Ok(maps)
}

/// As [`class_maps`], of classes of rows, of 16-bit elements.
pub(super) fn residue_maps(
    address: u64,
    layout: &TensorLayout,
    classes: Residues,
    rows: u32,
    encode: impl Fn(&TensorMap) -> Result<tma::TensorMap>,
) -> Result<[tma::TensorMap; HeadOffset::MAX_CLASSES]> {
    let map = |class: u32| {
        let first = address + 2 * (class as usize * layout.stride_seq) as u64;
        encode(&map_from((first, 2), classes.shift(class), &class_layout(layout, classes), rows))
    };
    let mut maps = [map(0)?; HeadOffset::MAX_CLASSES];
    for class in 1..classes.count() {
        maps[class as usize] = map(class)?;
    }
    Ok(maps)
}

/// The map of a class of heads: boxes of 128 bytes of columns and so many rows.
pub(crate) fn class_map(
    (address, element_bytes): (u64, u32),
    layout: &TensorLayout,
    rows: u32,
    class: usize,
) -> TensorMap {
    let TensorLayout { stride_head, heads, .. } = *layout;
    let classes = HeadOffset::classes(stride_head as u64);
    let shift = HeadOffset::of(stride_head as u64, class as u32, 0).shift;
    let layout = TensorLayout {
        heads: (heads - class).div_ceil(classes),
        stride_head: classes.saturating_mul(stride_head),
        ..*layout
    };
    let first = address + u64::from(element_bytes) * (class * stride_head) as u64;
    map_from((first, element_bytes), shift, &layout, rows)
}

/// The map of a view at `address`, `shift` elements behind a multiple of 16 bytes, from that multiple on.
fn map_from((address, element_bytes): (u64, u32), shift: u32, layout: &TensorLayout, rows: u32) -> TensorMap {
    let axis = |length, stride, boxed| {
        // The axis of a single index takes no steps, but its stride is looked at.
        Dimension { length, stride: if length == 1 { 16 / element_bytes as usize } else { stride }, boxed }
    };
    swizzled(
        (address - u64::from(element_bytes * shift), element_bytes),
        [
            Dimension {
                length: shift as usize + layout.head_dim,
                stride: 1,
                boxed: Sm90Config::BOX_BYTES / element_bytes,
            },
            axis(layout.seqlen, layout.stride_seq, rows),
            axis(layout.heads, layout.stride_head, 1),
            axis(layout.batch, layout.stride_batch, 1),
        ],
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_head_is_where_the_map_of_its_class_has_it() {
        let shapes = [(1_usize, 129), (3, 129), (16, 129), (2, 130), (7, 134), (5, 132), (1, 132), (12, 136)];
        for (heads, stride) in shapes {
            let row = (heads * stride).next_multiple_of(8);
            let layout = TensorLayout::strided([2, 5, heads, 129], [5 * row, row, stride, 1]);
            let maps = class_maps((4096, 2), &layout, 64, |map| Ok(map.encode().unwrap())).unwrap();
            for head in 0..heads {
                let start = HeadOffset::of(stride as u64, head as u32, 0);
                let map = class_map((4096, 2), &layout, 64, start.class as usize);
                let elements = u64::from(start.head) * map.strides[1] / 2 + u64::from(start.shift);
                assert_eq!(map.address + 2 * elements, 4096 + 2 * layout.row(0, 0, head) as u64);
                assert!(u64::from(start.head) < map.dims[2]);
                assert_eq!(map.dims[0], u64::from(start.shift) + 129);
                assert_eq!(maps[start.class as usize], map.encode().unwrap());
            }
            let classes = HeadOffset::classes(stride as u64).min(heads);
            let mapped: u64 =
                (0..classes).map(|class| class_map((4096, 2), &layout, 64, class).dims[2]).sum();
            assert_eq!(mapped, heads as u64);
            assert!(maps[classes..].iter().all(|map| *map == maps[0]));
        }
    }

    #[test]
    fn each_row_is_where_the_map_of_its_class_has_it() {
        for (seqlen, stride) in [(16_u32, 129), (40, 131), (12, 130), (8, 134), (6, 132), (4, 140)] {
            let head = 8 * seqlen as usize * stride;
            let layout = TensorLayout::strided([2, seqlen as usize, 3, 129], [3 * head, stride, head, 1]);
            let classes = Residues::of(stride as u64);
            let maps = residue_maps(4096, &layout, classes, 8, |map| {
                let rows = u64::from(classes.rows(seqlen));
                assert_eq!((map.dims[1], map.box_dims[1]), (rows, 8));
                Ok(map.encode().unwrap())
            })
            .unwrap();
            for row in 0..seqlen {
                let (class, index) = (row % classes.count(), row / classes.count());
                let first = 4096 + 2 * layout.row(0, class as usize, 0) as u64;
                let map = map_from((first, 2), classes.shift(class), &class_layout(&layout, classes), 8);
                let elements = u64::from(index) * map.strides[0] / 2 + u64::from(classes.shift(class));
                assert_eq!(map.address + 2 * elements, 4096 + 2 * layout.row(0, row as usize, 0) as u64);
                assert_eq!(map.dims[0], u64::from(classes.shift(class)) + 129);
                assert_eq!(maps[class as usize], map.encode().unwrap());
            }
        }
    }
}
