use super::*;
use crate::Plan;
use crate::append::{AppendAddresses, AppendOutputs};
use crate::operation::Operation as _;
use crate::sim::Sim;

const NEW: TensorLayout = TensorLayout::bshd(2, 3, 2, 8);
const CACHE: TensorLayout = TensorLayout::bshd(2, 20, 2, 8);
const PAGES: TensorLayout = TensorLayout::bshd(5, 4, 2, 8);
const TENSORS: AppendTensors = AppendTensors { k: NEW, v: NEW, k_cache: CACHE, v_cache: CACHE };
const ROTARY: Rotary = Rotary { dim: 4, rows: 20, interleaved: false, queries: None };

fn paged(max_pages: usize) -> Result<AppendProblem> {
    let tensors = AppendTensors { k_cache: PAGES, v_cache: PAGES, ..TENSORS };
    let options = AppendOptions { max_pages: Some(max_pages), ..AppendOptions::default() };
    AppendProblem::new(tensors, DType::F32, options)
}

fn refused(tensors: AppendTensors, rotary: Option<Rotary>) -> String {
    let options = AppendOptions { max_pages: None, rotary };
    AppendProblem::new(tensors, DType::F16, options).unwrap_err().to_string()
}

#[test]
fn each_refusal_of_shapes_names_argument_value_and_limit() {
    let with = |change: fn(&mut AppendTensors)| {
        let mut tensors = TENSORS;
        change(&mut tensors);
        refused(tensors, None)
    };
    assert_eq!(with(|t| t.v.seqlen = 2), "v: seqlen is 2, but k has 3");
    assert_eq!(with(|t| t.k.seqlen = 0), "k: axis seqlen has length 0; at least 1 is needed");
    assert_eq!(with(|t| t.k_cache.heads = 1), "k_cache: heads is 1, but k has 2");
    assert_eq!(with(|t| t.v_cache.head_dim = 7), "v_cache: head_dim is 7, but v has 8");
    assert_eq!(with(|t| t.v_cache.seqlen = 19), "v_cache: seqlen is 19, but k_cache has 20");
    assert_eq!(with(|t| (t.k_cache.batch, t.v_cache.batch) = (3, 3)), "k_cache: batch is 3, but k has 2");
    assert_eq!(
        with(|t| t.v_cache.stride_seq = 0),
        "v_cache: stride 0 of axis seqlen overlaps its neighbours; an output needs at least 1"
    );
    assert_eq!(with(|t| (t.k.seqlen, t.v.seqlen) = (21, 21)), "k: seqlen is 21; the limit is 20");
    assert_eq!(
        with(|t| (t.k.head_dim, t.k_cache.head_dim) = (769, 769)),
        "head_dim is 769; kernels take 1 to 768"
    );
    assert_eq!(
        paged(0).unwrap_err().to_string(),
        "page_table: axis max_pages has length 0; at least 1 is needed"
    );
    let error = AppendProblem::new(TENSORS, DType::E4m3, AppendOptions::default()).unwrap_err().to_string();
    assert_eq!(error, "kernel append has no e4m3 entry; it has f32, f16, bf16");
}

#[test]
fn each_refusal_of_an_embedding_names_argument_value_and_limit() {
    let rotary = |rotary| refused(TENSORS, Some(rotary));
    for dim in [0, 3, 10] {
        let message = format!("rotary: dim is {dim}; an even number of 2 to head_dim = 8 is needed");
        assert_eq!(rotary(Rotary { dim, ..ROTARY }), message);
    }
    assert_eq!(
        rotary(Rotary { rows: 19, ..ROTARY }),
        "rotary: the tables have 19 rows; keys and queries have 20 positions"
    );
    let of_queries = |q: TensorLayout, in_order| {
        let queries = RotaryQueries { q, q_out: q, in_order };
        Rotary { queries: Some(queries), ..ROTARY }
    };
    let longer = TensorLayout::bshd(2, 5, 4, 8);
    assert_eq!(
        rotary(of_queries(longer, true)),
        "rotary: the tables have 20 rows; keys and queries have 22 positions"
    );
    let options = AppendOptions { max_pages: None, rotary: Some(of_queries(longer, false)) };
    AppendProblem::new(TENSORS, DType::F16, options).unwrap();
    assert_eq!(rotary(of_queries(TensorLayout::bshd(1, 3, 4, 8), false)), "q: batch is 1, but k has 2");
    let queries = RotaryQueries { q: longer, q_out: TensorLayout::bshd(2, 5, 3, 8), in_order: false };
    assert_eq!(rotary(Rotary { queries: Some(queries), ..ROTARY }), "q_out: heads is 3, but q has 4");
}

fn check(problem: &AppendProblem, seqused_k: &[i32], page_table: Option<&[i32]>) -> Result<()> {
    let values = vec![0.0_f32; NEW.span()];
    let inputs = AppendInputs { seqused_k, page_table, ..AppendInputs::new(&values, &values) };
    let (mut k_cache, mut v_cache) = (vec![0.0; CACHE.span()], vec![0.0; CACHE.span()]);
    let mut outputs = AppendOutputs { k_cache: &mut k_cache, v_cache: &mut v_cache, q: &mut [] };
    let plan = Plan::new(problem, &crate::cpu::backend::device(), &())?;
    plan.check(plan.device(), inputs, &mut outputs)
}

#[test]
fn each_refusal_of_lists_names_place_value_and_limit() {
    let problem = paged(3).unwrap();
    let message = |used: &[i32], table| check(&problem, used, table).unwrap_err().to_string();
    let table = [0, 1, 9, 2, -1, 3];
    assert_eq!(message(&[0, 0], None), "page_table is missing: K and V are pages");
    assert_eq!(
        message(&[0, 0], Some(&table[..5])),
        "page_table: buffer has 5 elements; its shape and strides reach 6"
    );
    assert_eq!(
        message(&[0], Some(&table)),
        "seqused_k: buffer has 1 elements; its shape and strides reach 2"
    );
    let room = "a sequence has room for 9 keys before 3 new ones";
    assert_eq!(message(&[10, 0], Some(&table)), format!("seqused_k[0] is 10; {room}"));
    assert_eq!(message(&[0, -1], Some(&table)), format!("seqused_k[1] is -1; {room}"));
    assert_eq!(message(&[9, 0], Some(&table)), "page_table[0][2] is 9; there are 5 pages");
    assert_eq!(message(&[0, 2], Some(&table)), "page_table[1][1] is -1; there are 5 pages");
    // Entries in front of the new keys and behind them may be anything.
    check(&problem, &[4, 9], Some(&table)).unwrap();
}

#[test]
fn an_address_that_is_needed_is_asked_for() {
    let queries = Some(RotaryQueries { q: NEW, q_out: NEW, in_order: true });
    let options = AppendOptions { max_pages: None, rotary: Some(Rotary { queries, ..ROTARY }) };
    let problem = AppendProblem::new(TENSORS, DType::F16, options).unwrap();
    let plan = Plan::new(&problem, Sim::new(0).device(), &()).unwrap();
    let mut addresses = AppendAddresses::default();
    let params = |addresses: &AppendAddresses| {
        AppendProblem::params(&plan, &plan.launches()[0], addresses, |map| {
            panic!("there are no tensor maps, and this is one: {map:?}")
        })
    };
    assert_eq!(
        params(&addresses).unwrap_err().to_string(),
        "rotary_cos: no address was given, but the problem has it"
    );
    addresses.cos_sin = Some((16, 32));
    assert_eq!(
        params(&addresses).unwrap_err().to_string(),
        "q: no address was given, but the problem has it"
    );
    addresses.q = Some((64, 64));
    params(&addresses).unwrap();
}
