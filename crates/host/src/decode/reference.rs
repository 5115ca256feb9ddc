//! What is right: each row against its own keys, gathered from wherever they lie.

use rayon::prelude::*;

use super::{CacheData, DecodeInputs, DecodeProblem};
use crate::reference::{self, Reference, Row};
use crate::{Element, TensorLayout, Tensors};

impl DecodeProblem {
    /// Attention in f64 of the given rows, and the plain computation beside it
    /// ([`reference::standard_rows`]).
    ///
    /// # Panics
    /// When a buffer is shorter than its view, or a page does not exist.
    pub fn reference<T: Element>(
        &self,
        inputs: &DecodeInputs<'_, T>,
        rows: &[Row],
    ) -> (Reference, Vec<T::Output>) {
        let of_rows: Vec<_> = rows.par_iter().map(|&at| self.reference_row(inputs, at)).collect();
        let largest =
            |part: fn(&Reference) -> f64| of_rows.iter().map(|(row, _)| part(row)).fold(0.0, f64::max);
        let reference = Reference {
            output_rounding: largest(|row| row.output_rounding),
            lse_rounding: largest(|row| row.lse_rounding),
            lse_sums: largest(|row| row.lse_sums),
            weight_rounding: largest(|row| row.weight_rounding),
            o: of_rows.iter().flat_map(|(row, _)| row.o.iter().copied()).collect(),
            lse: of_rows.iter().flat_map(|(row, _)| row.lse.iter().copied()).collect(),
        };
        (reference, of_rows.into_iter().flat_map(|(_, standard)| standard).collect())
    }

    fn reference_row<T: Element>(
        &self,
        inputs: &DecodeInputs<'_, T>,
        at: Row,
    ) -> (Reference, Vec<T::Output>) {
        let dense = self.dense();
        let (head_dim, head_dim_v) = (dense.head_dim(), dense.head_dim_v());
        // Queries of a tree see other keys each; those of others, the mask tells apart.
        let of_sequence = 0..dense.query_rows(at.batch).len();
        let rows = if self.has_tree_mask() { at.row..at.row + 1 } else { of_sequence };
        let keys = self.visible_keys(inputs, at.batch, at.row);
        let kv_head = at.head / dense.group();
        let gather = |cache: &TensorLayout, data: CacheData<'_, T>| -> Vec<T> {
            let row = |key| self.row(cache, inputs, at.batch, key, kv_head);
            keys.iter().flat_map(|&key| data.row(row(key), cache.head_dim)).collect()
        };
        let one = |rows, columns| TensorLayout::bshd(1, rows, 1, columns);
        let (q, o) = (one(rows.len(), head_dim), one(rows.len(), head_dim_v));
        let tensors = Tensors { q, k: one(keys.len(), head_dim), v: one(keys.len(), head_dim_v), o };
        let Ok(problem) = dense.part(tensors, at.batch, at.head..at.head + 1) else {
            // The one way in which a valid problem's part is none: it has no key.
            let (o, lse) = (vec![0.0; head_dim_v], vec![dense.scores().sink(at.batch, at.head).into()]);
            let empty = Reference { o, lse, ..Reference::default() };
            return (empty, vec![T::Output::from_f32(0.0); head_dim_v]);
        };
        // Elements of e4m3 are exact in any other type, and their factors those of all scores and of O.
        let problem = match self.descales() {
            Some(descales) => problem.with_cache_descale(descales.of(at.batch, kv_head)),
            None => problem,
        };
        let first = |row| dense.query_index(&dense.tensors().q, at.batch, row, at.head);
        let row_of_q = |row| &inputs.q[first(row)..][..head_dim];
        let q: Vec<T> = rows.clone().flat_map(|row| row_of_q(row).iter().copied()).collect();
        let (k, v) = (gather(self.k(), inputs.k), gather(self.v(), self.values(inputs)));
        let at = [Row { batch: 0, head: 0, row: at.row - rows.start }];
        (reference::rows(&problem, &q, &k, &v, &at), reference::standard_rows(&problem, &q, &k, &v, &at))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::decode::DecodeOptions;
    use crate::{DType, Options};

    #[test]
    fn pages_and_lengths_are_followed() {
        // Two pages of two keys, in reverse; the second sequence has no key, the first three.
        let q = TensorLayout::bshd(2, 2, 1, 1);
        let pages = TensorLayout::bshd(2, 2, 1, 1);
        let attention = Options { causal: true, softmax_scale: Some(0.0), ..Options::default() };
        let options = DecodeOptions { attention, max_pages: Some(2), ..DecodeOptions::default() };
        let problem =
            DecodeProblem::new(Tensors { q, k: pages, v: pages, o: q }, DType::F32, options).unwrap();
        let v = [6.0, f32::NAN, 1.0, 2.0];
        let inputs = DecodeInputs {
            q: &[1.0; 4],
            k: (&[0.0; 4][..]).into(),
            v: (&v[..]).into(),
            seqused_k: Some(&[3, 0]),
            page_table: Some(&[1, 0, 9, 9]),
            tree_mask: None,
        };
        let (reference, standard) = problem.reference(&inputs, &reference::all(problem.dense()));
        assert_eq!(standard, [1.5, 3.0, 0.0, 0.0]);
        assert!((reference.o[1] - 3.0).abs() < 1e-12);
        assert_eq!(reference.lse[2..], [f64::NEG_INFINITY; 2]);
    }

    #[test]
    fn a_tree_sees_its_branches_and_what_is_older() {
        let (q, kv) = (TensorLayout::bshd(2, 2, 1, 1), TensorLayout::bshd(2, 3, 1, 1));
        let attention = Options { softmax_scale: Some(0.0), ..Options::default() };
        let options = DecodeOptions { attention, tree_mask: true, ..DecodeOptions::default() };
        let problem = DecodeProblem::new(Tensors { q, k: kv, v: kv, o: q }, DType::F32, options).unwrap();
        let inputs = DecodeInputs {
            seqused_k: Some(&[3, 1]),
            // Of the second sequence's newest two keys, the first is before its only one.
            tree_mask: Some(&[0b01, 0b10, 0b01, !0]),
            ..DecodeInputs::new(&[1.0; 4], &[0.0; 6], &[2.0, 4.0, 8.0, 5.0, f32::NAN, f32::NAN])
        };
        let (reference, standard) = problem.reference(&inputs, &reference::all(problem.dense()));
        assert_eq!(standard, [3.0, 5.0, 0.0, 5.0]);
        assert_eq!(reference.lse[2], f64::NEG_INFINITY);
    }
}
