//! What a decode problem takes, and what it refuses.

use super::*;
use crate::Plan;
use crate::decode::DecodeRequest;
use crate::forward::Outputs;

fn tensors(sq: usize, k: TensorLayout) -> Tensors {
    let q = TensorLayout::bshd(2, sq, 4, 8);
    Tensors { q, k, v: k, o: q }
}

fn paged(max_pages: usize) -> Result<DecodeProblem> {
    let options = DecodeOptions { max_pages: Some(max_pages), ..DecodeOptions::default() };
    DecodeProblem::new(tensors(1, TensorLayout::bshd(5, 16, 2, 8)), DType::F32, options)
}

fn check(problem: &DecodeProblem, seqused_k: Option<&[i32]>, page_table: Option<&[i32]>) -> Result<()> {
    let (q, kv) = (vec![0.0_f32; 64], vec![0.0; 5 * 16 * 16]);
    let of = DecodeInputs::new(&q, &kv, &kv);
    let inputs = DecodeInputs { seqused_k, page_table, ..of };
    let (mut o, mut lse) = ([0.0; 64], [0.0; 8]);
    let mut outputs = Outputs { o: &mut o, lse: Some(&mut lse) };
    let plan = Plan::new(problem, &crate::cpu::backend::device(), &DecodeRequest::default())?;
    plan.check(plan.device(), inputs, &mut outputs)
}

fn message(seqused_k: Option<&[i32]>, page_table: Option<&[i32]>) -> String {
    check(&paged(3).unwrap(), seqused_k, page_table).unwrap_err().to_string()
}

#[test]
fn pages_make_up_the_sequence() {
    let problem = paged(3).unwrap();
    assert_eq!((problem.dense().seqlen_k(), problem.dense().batch()), (48, 2));
    assert_eq!(problem.packed_rows(), 2);
}

#[test]
fn each_refusal_names_argument_value_and_limit() {
    let error = paged(0).unwrap_err().to_string();
    assert_eq!(error, "page_table: axis max_pages has length 0; at least 1 is needed");
    let pages = tensors(1, TensorLayout::bshd(5, 16, 2, 8));
    let short = Tensors { v: TensorLayout::bshd(5, 8, 2, 8), ..pages };
    let options = DecodeOptions { max_pages: Some(3), ..DecodeOptions::default() };
    let error = DecodeProblem::new(short, DType::F16, options).unwrap_err().to_string();
    assert_eq!(error, "v: page_size is 8, but k has 16");
    let options = |attention| DecodeOptions { attention, ..DecodeOptions::default() };
    let refused = |attention| {
        let tensors = tensors(1, TensorLayout::bshd(2, 40, 2, 8));
        DecodeProblem::new(tensors, DType::F16, options(attention)).unwrap_err().to_string()
    };
    let error = refused(Options { softcap: -1.0, ..Options::default() });
    assert!(error.starts_with("softcap is -1"), "{error}");
    let dropout = Some(Dropout { probability: 0.5, seed: 1, offset: 0 });
    let error = refused(Options { dropout, ..Options::default() });
    assert_eq!(error, "dropout probability is 0.5; decode drops no weights");
    let error = paged(usize::MAX).unwrap_err().to_string();
    assert!(error.contains("exceeds the address space"), "{error}");
    let table = [0, 1, 2, 3, 4, 5];
    assert_eq!(message(None, None), "page_table is missing: K and V are pages");
    assert_eq!(
        message(None, Some(&table[..5])),
        "page_table: buffer has 5 elements; its shape and strides reach 6"
    );
    assert_eq!(message(None, Some(&table)), "page_table[1][2] is 5; there are 5 pages");
    assert_eq!(message(Some(&[48, 49]), Some(&table)), "seqused_k[1] is 49; a sequence has room for 48 keys");
    assert_eq!(message(Some(&[-1, 0]), Some(&table)), "seqused_k[0] is -1; a sequence has room for 48 keys");
    assert_eq!(
        message(Some(&[48, 33]), Some(&[0, 1, -1, 0, 0, 0])),
        "page_table[0][2] is -1; there are 5 pages"
    );
}

#[test]
fn packed_queries_have_a_cache_of_their_own_sequence() {
    let q = TensorLayout::bshd(1, 7, 4, 8);
    let cache = TensorLayout::bshd(3, 40, 2, 8);
    let tensors = Tensors { q, k: cache, v: cache, o: q };
    let of = |tensors, offsets: &[u32]| {
        DecodeProblem::varlen(tensors, DType::F32, DecodeOptions::default(), offsets)
    };
    let problem = of(tensors, &[0, 5, 5, 7]).unwrap();
    assert_eq!((problem.dense().batch(), problem.dense().seqlen_q()), (3, 5));
    assert_eq!((problem.dense().seqlen_k(), problem.dense().lse_len()), (40, 28));
    let message = |tensors, offsets| of(tensors, offsets).unwrap_err().to_string();
    assert_eq!(message(tensors, &[0, 5, 7]), "k: batch is 3, but q has 2");
    assert_eq!(
        message(tensors, &[0, 5, 8, 7]),
        "cu_seqlens_q: offset 3 is 7; the one before is 8, and none may decrease"
    );
    let (batch, long) = (3, TensorLayout::bshd(3, 1 << 31, 2, 8));
    let options = DecodeOptions::default;
    let of_long = Tensors { k: long, v: long, ..tensors };
    let error = DecodeProblem::varlen_on_device(of_long, DType::F32, options(), batch, 5).unwrap_err();
    assert_eq!(error.to_string(), "k: seqlen is 6442450944; the limit is 4294967295");
}

#[test]
fn each_refusal_of_a_tree_names_argument_value_and_limit() {
    let tree = |sq, attention| {
        let options = DecodeOptions { attention, tree_mask: true, ..DecodeOptions::default() };
        DecodeProblem::new(tensors(sq, TensorLayout::bshd(2, 40, 2, 8)), DType::F32, options)
    };
    let refused = |sq, attention| tree(sq, attention).unwrap_err().to_string();
    assert_eq!(refused(65, Options::default()), "q: seqlen is 65; the limit is 64");
    let beside = |name| {
        format!("{name} is given beside tree_mask, which says what queries see; one of them is possible")
    };
    let causal = Options { causal: true, ..Options::default() };
    assert_eq!(refused(3, causal), beside("causal"));
    let window = Options { window: (Some(3), None), ..Options::default() };
    assert_eq!(refused(3, window), beside("window"));
    let slopes = Options { alibi_slopes: Some(vec![1.0; 4]), ..Options::default() };
    assert_eq!(refused(3, slopes), beside("alibi_slopes"));

    let problem = tree(64, Options::default()).unwrap();
    let plan = Plan::new(&problem, &crate::cpu::backend::device(), &DecodeRequest::default()).unwrap();
    let (q, kv) = (vec![0.0_f32; 2 * 64 * 4 * 8], vec![0.0; 2 * 40 * 2 * 8]);
    let message = |tree_mask| {
        let inputs = DecodeInputs { tree_mask, ..DecodeInputs::new(&q, &kv, &kv) };
        let mut o = vec![0.0; q.len()];
        plan.check(plan.device(), inputs, &mut Outputs { o: &mut o, lse: None }).unwrap_err().to_string()
    };
    assert_eq!(message(None), "tree_mask is missing: queries are a tree");
    assert_eq!(
        message(Some(&[0; 127])),
        "tree_mask: buffer has 127 elements; its shape and strides reach 128"
    );
}

#[test]
fn entries_behind_the_keys_may_be_anything() {
    let problem = paged(3).unwrap();
    let (q, kv) = (vec![0.0_f32; 64], vec![0.0; 5 * 16 * 16]);
    let inputs = DecodeInputs {
        q: &q,
        k: (&kv).into(),
        v: (&kv).into(),
        seqused_k: Some(&[32, 0]),
        page_table: Some(&[4, 0, -7, 99, 99, 99]),
        tree_mask: None,
    };
    check(&problem, inputs.seqused_k, inputs.page_table).unwrap();
    assert_eq!(problem.cache_bytes(&inputs), 2 * 32 * 2 * 8 * 4);
}

#[test]
fn values_of_latents_are_a_part_of_them() {
    let layouts = |d: usize, dv: usize| {
        let rows = |columns| TensorLayout::bshd(2, 1, 16, columns);
        let k = TensorLayout::bshd(2, 40, 1, d);
        Tensors { q: rows(d), k, v: TensorLayout { head_dim: dv, ..k }, o: rows(dv) }
    };
    let of = |tensors, options| {
        let options = DecodeOptions { latent: true, ..options };
        DecodeProblem::new(tensors, DType::F32, options).map_err(|error| error.to_string())
    };
    let plain = DecodeOptions::default;
    let problem = of(layouts(576, 512), plain()).unwrap();
    let inputs = DecodeInputs::new(&[0.0_f32], &[0.0], &[0.0]);
    assert_eq!(problem.cache_bytes(&inputs), 2 * 40 * 576 * 4);
    let refused = |tensors, options| of(tensors, options).unwrap_err();
    assert_eq!(refused(layouts(577, 512), plain()), "head_dim is 577; kernels take 1 to 576");
    assert_eq!(refused(layouts(576, 513), plain()), "v: head_dim is 513; kernels take 1 to 512");
    let others = "v: its layout is not that of the first 64 columns of k, which latents have as values";
    assert_eq!(refused(layouts(48, 64), plain()), others);
    let mut apart = layouts(96, 64);
    apart.v.stride_seq += 8;
    assert_eq!(refused(apart, plain()), others);
    let beside = |name| format!("{name} is given beside latent, which does not take it");
    let e4m3_cache = Some(crate::decode::E4m3Cache::default());
    assert_eq!(refused(layouts(96, 64), DecodeOptions { e4m3_cache, ..plain() }), beside("e4m3_cache"));
    assert_eq!(refused(layouts(96, 64), DecodeOptions { tree_mask: true, ..plain() }), beside("tree_mask"));
    let Tensors { q, k, v, o } = layouts(96, 64);
    let packed = Tensors { q: TensorLayout { batch: 1, ..q }, k, v, o: TensorLayout { batch: 1, ..o } };
    let options = DecodeOptions { latent: true, ..plain() };
    let refused = DecodeProblem::varlen(packed, DType::F32, options, &[0, 1, 1]).unwrap_err().to_string();
    assert_eq!(refused, beside("cu_seqlens_q"));
    // Without the option they are two tensors, of at most 256 columns.
    let refused = DecodeProblem::new(layouts(576, 512), DType::F32, plain()).unwrap_err().to_string();
    assert_eq!(refused, "head_dim is 576; kernels take 1 to 256");
}
