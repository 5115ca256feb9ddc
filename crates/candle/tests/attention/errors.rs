use candle_core::{DType, Device, Result, Tensor};
use candle_flash_attention::{
    FlashAttnVarLen, flash_attn, flash_attn_alibi, flash_attn_alibi_windowed_softcap, flash_attn_varlen,
    flash_attn_varlen_paged_windowed,
};

use crate::plain::{offsets, variable};

/// Asserts what the first line of a message is; a backtrace may follow it.
#[track_caller]
fn refused(found: Result<Tensor>, message: &str) {
    let found = found.unwrap_err().to_string();
    assert_eq!(found.lines().next(), Some(format!("flash-attn: {message}").as_str()));
}

fn zeros(shape: &[usize], dtype: DType) -> Tensor {
    Tensor::zeros(shape, dtype, &Device::Cpu).unwrap()
}

#[test]
fn tensors_that_do_not_fit() {
    let q = zeros(&[2, 5, 4, 16], DType::F32);
    let with = |k: &Tensor, v: &Tensor| flash_attn(&q, k, v, 1.0, false);
    let float = |shape: &[usize]| zeros(shape, DType::F32);
    let half = zeros(&[2, 5, 4, 16], DType::F16);
    refused(with(&half, &half), "k is F16, but q is F32");
    refused(with(&q, &half), "v is F16, but q is F32");
    let double = zeros(&[2, 5, 4, 16], DType::F64);
    refused(flash_attn(&double, &double, &double, 1.0, false), "q is F64; F16, BF16 and F32 are supported");
    let flat = float(&[10, 4, 16]);
    let axes = "four axes, [batch, seqlen, heads, head_dim], are needed";
    refused(with(&flat, &flat), &format!("k has shape [10, 4, 16]; {axes}"));
    let wide = float(&[2, 5, 4, 257]);
    let limit = "any from 1 to 256 is supported (candle-flash-attn has multiples of 8 up to 512)";
    refused(flash_attn(&wide, &wide, &wide, 1.0, false), &format!("head_dim of q is 257; {limit}"));
    let empty = float(&[2, 5, 4, 0]);
    refused(with(&q, &empty), &format!("head_dim of v is 0; {limit}"));
    let three = float(&[2, 5, 3, 16]);
    refused(with(&three, &three), "kv_heads is 3, which does not divide heads = 4");
    refused(with(&float(&[3, 5, 4, 16]), &q), "k: batch is 3, but q has 2");
    refused(with(&q, &float(&[2, 6, 4, 16])), "v: seqlen is 6, but k has 5");
    refused(with(&float(&[2, 5, 4, 8]), &q), "k: head_dim is 8, but q has 16");
    let columns = float(&[2, 5, 16, 4]).transpose(2, 3).unwrap();
    refused(with(&columns, &q), "k: stride of head_dim is 4; rows must be contiguous (stride 1)");
}

#[test]
fn numbers_out_of_range() {
    let q = zeros(&[2, 5, 4, 16], DType::F32);
    let scale = flash_attn(&q, &q, &q, f32::NAN, false);
    refused(scale, "softmax_scale is NaN; a number of at most 1.8446744e19 in magnitude is needed");
    let softcap = flash_attn_alibi_windowed_softcap(&q, &q, &q, None, 1.0, None, None, -2.0);
    refused(softcap, "softcap is -2.0; 0 (off) or 1.1754944e-38 to 1e30 is needed");
    let alibi = |slopes: &Tensor| flash_attn_alibi(&q, &q, &q, slopes, 1.0, false);
    refused(alibi(&zeros(&[4], DType::F16)), "alibi_slopes is F16; F32 is needed");
    let short = zeros(&[3], DType::F32);
    refused(alibi(&short), "alibi_slopes has shape [3]; [4], one per head, is needed");
}

#[test]
fn sequences_that_do_not_fit() {
    let q = zeros(&[10, 4, 16], DType::F32);
    let packed = |seqlens_q: &Tensor, seqlens_k: &Tensor, max_q: usize, max_k: usize| {
        flash_attn_varlen(&q, &q, &q, seqlens_q, seqlens_k, max_q, max_k, 1.0, false)
    };
    let good = offsets(&[4, 6]);
    assert!(packed(&good, &good, 6, 6).is_ok());
    let dense = zeros(&[1, 10, 4, 16], DType::F32);
    let found = flash_attn_varlen(&q, &dense, &q, &good, &good, 6, 6, 1.0, false);
    refused(found, "k has shape [1, 10, 4, 16]; three axes, [total, heads, head_dim], are needed");
    refused(packed(&good.to_dtype(DType::I64).unwrap(), &good, 6, 6), "seqlens_q is I64; U32 is needed");
    let one = offsets(&[]);
    refused(packed(&good, &one, 6, 6), "seqlens_k has shape [1]; [batch + 1], at least [2], is needed");
    refused(packed(&good, &offsets(&[10]), 6, 6), "seqlens_q has 3 elements, but seqlens_k has 2");
    refused(packed(&good, &good, 5, 6), "max_seqlen_q is 5, but sequence 1 has 6 rows");
    refused(packed(&good, &good, 6, 3), "max_seqlen_k is 3, but sequence 0 has 4 rows");
    let beyond = offsets(&[4, 7]);
    let found = packed(&beyond, &good, 7, 7).unwrap_err().to_string();
    assert!(found.starts_with("flash-attn: cu_seqlens_q: offset 2 is 11; "), "{found}");
}

/// Query rows, offsets of queries, and what is asked of pages.
struct Paged {
    q: Tensor,
    kv: Tensor,
    seqlens_q: Tensor,
    seqlens_k: Tensor,
    table: Tensor,
    ranges: Option<Tensor>,
    rows: usize,
    windows: (Option<usize>, Option<usize>),
    page: usize,
    softcap: Option<f32>,
}

impl Paged {
    fn new() -> Self {
        Self {
            q: zeros(&[4, 4, 16], DType::F32),
            kv: zeros(&[5, 8, 2, 16], DType::F32),
            seqlens_q: offsets(&[2, 2]),
            seqlens_k: offsets(&[9, 16]),
            table: Tensor::new(&[[0_u32, 1], [2, 3]], &Device::Cpu).unwrap(),
            ranges: None,
            rows: 2,
            windows: (None, Some(0)),
            page: 8,
            softcap: None,
        }
    }

    fn run(&self) -> Result<Tensor> {
        flash_attn_varlen_paged_windowed(
            &self.q,
            &self.kv,
            &self.kv,
            &self.seqlens_q,
            &self.seqlens_k,
            &self.table,
            self.ranges.as_ref(),
            self.rows,
            16,
            1.0,
            self.windows.0,
            self.windows.1,
            self.page,
            self.softcap,
        )
    }
}

#[test]
fn what_pages_do_not_take() {
    let paged = |change: fn(&mut Paged)| {
        let mut paged = Paged::new();
        change(&mut paged);
        paged.run()
    };
    assert!(paged(|_| {}).is_ok());
    let ranges: fn(&mut Paged) = |paged| paged.ranges = Some(zeros(&[2, 1, 2], DType::I32));
    refused(paged(ranges), "mm_prefix_ranges is given; only None is supported");
    refused(paged(|paged| paged.page = 16), "page_block_size is Some(16), but pages of k have 8");
    let few: fn(&mut Paged) = |paged| paged.table = zeros(&[3, 2], DType::U32);
    refused(paged(few), "block_table has shape [3, 2]; [2, pages] is needed");
    let float: fn(&mut Paged) = |paged| paged.table = zeros(&[2, 2], DType::F32);
    refused(paged(float), "block_table is F32; U32 or I32 is needed");
    let none: fn(&mut Paged) = |paged| paged.table = zeros(&[2, 0], DType::U32);
    refused(paged(none), "block_table has shape [2, 0]; [2, pages] is needed");
    let uneven: fn(&mut Paged) = |paged| paged.seqlens_q = offsets(&[1, 2]);
    refused(
        paged(uneven),
        "seqlens_q[1] is 1; with block_table and max_seqlen_q = 2 of 2 sequences in 4 rows, 2 is needed",
    );
    let elsewhere: fn(&mut Paged) =
        |paged| paged.table = Tensor::new(&[[0_u32, 5], [2, 3]], &Device::Cpu).unwrap();
    refused(paged(elsewhere), "page_table[0][1] is 5; there are 5 pages");
    let down: fn(&mut Paged) = |paged| paged.seqlens_k = Tensor::new(&[0_u32, 9, 8], &Device::Cpu).unwrap();
    refused(paged(down), "seqlens_k[2] is 8, below 9 before it");
}

#[test]
fn what_copies_of_pages_do_not_take() {
    let copied = |change: fn(&mut Paged)| {
        // Rows that differ are none of decode's.
        let mut paged = Paged { seqlens_q: offsets(&[1, 3]), rows: 3, softcap: Some(2.0), ..Paged::new() };
        change(&mut paged);
        paged.run()
    };
    assert!(copied(|_| {}).is_ok());
    let softcap = copied(|paged| paged.softcap = Some(-2.0));
    refused(softcap, "softcap is -2.0; 0 (off) or 1.1754944e-38 to 1e30 is needed");
    refused(copied(|paged| paged.page = 16), "page_block_size is Some(16), but pages of k have 8");
    let none: fn(&mut Paged) = |paged| paged.table = zeros(&[2, 0], DType::U32);
    refused(copied(none), "block_table has shape [2, 0]; [2, pages] is needed");
    let no_pages: fn(&mut Paged) = |paged| paged.kv = zeros(&[0, 8, 2, 16], DType::F32);
    refused(copied(no_pages), "k has shape [0, 8, 2, 16]; at least one page of one key is needed");
    let elsewhere: fn(&mut Paged) =
        |paged| paged.table = Tensor::new(&[[0_i64, 1], [2, -1]], &Device::Cpu).unwrap();
    refused(copied(elsewhere), "block_table is I64; U32 or I32 is needed");
    let beyond: fn(&mut Paged) =
        |paged| paged.table = Tensor::new(&[[0_u32, 5], [2, 3]], &Device::Cpu).unwrap();
    refused(copied(beyond), "block_table[0][1] is 5; there are 5 pages");
    let negative: fn(&mut Paged) =
        |paged| paged.table = Tensor::new(&[[0_u32, 1], [2, u32::MAX]], &Device::Cpu).unwrap();
    refused(copied(negative), "block_table[1][1] is -1; there are 5 pages");
    let down: fn(&mut Paged) = |paged| paged.seqlens_k = Tensor::new(&[0_u32, 9, 8], &Device::Cpu).unwrap();
    refused(copied(down), "seqlens_k[2] is 8, below 9 before it");
    let short: fn(&mut Paged) = |paged| paged.table = Tensor::new(&[[0_u32], [2]], &Device::Cpu).unwrap();
    refused(copied(short), "seqused_k[0] is 9; a sequence has room for 8 keys");
    let longer: fn(&mut Paged) = |paged| paged.seqlens_q = offsets(&[0, 4]);
    refused(copied(longer), "max_seqlen_q is 3, but sequence 1 has 4 rows");
}

#[test]
fn values_in_other_pages_than_keys() {
    let Paged { q, kv, seqlens_q, seqlens_k, table, .. } = Paged::new();
    let with = |v: &Tensor| {
        flash_attn_varlen_paged_windowed(
            &q,
            &kv,
            v,
            &seqlens_q,
            &seqlens_k,
            &table,
            None,
            2,
            16,
            1.0,
            Some(3),
            Some(0),
            8,
            None,
        )
    };
    refused(with(&zeros(&[4, 8, 2, 16], DType::F32)), "v: num_pages is 4, but k has 5");
    refused(with(&zeros(&[5, 4, 2, 16], DType::F32)), "v: page_size is 4, but k has 8");
    refused(with(&zeros(&[5, 8, 1, 16], DType::F32)), "v: heads is 1, but k has 2");
}

#[test]
fn gradients_of_pages() {
    let paged = Paged::new();
    let op = |softcap: Option<f32>| FlashAttnVarLen {
        softmax_scale: 1.0,
        max_seqlen_q: 2,
        max_seqlen_k: 16,
        seqlens_q: paged.seqlens_q.clone(),
        seqlens_k: paged.seqlens_k.clone(),
        block_table: Some(paged.table.clone()),
        mm_prefix_ranges: None,
        page_block_size: Some(8),
        alibi_slopes: None,
        window_size_left: None,
        window_size_right: None,
        softcap,
    };
    let q = variable(1, &[4, 4, 16], DType::F32);
    let refusal = "flash-attn: block_table is given, and pages of K and V have no gradients";
    for softcap in [None, Some(2.0)] {
        let o = q.apply_op3(&paged.kv, &paged.kv, op(softcap)).unwrap();
        let gradient = o.sum_all().unwrap().backward().unwrap_err().to_string();
        assert!(gradient.starts_with(refusal), "{gradient}");
    }
}
