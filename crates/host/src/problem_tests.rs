use super::*;

fn tensors(sq: usize, sk: usize, h: usize, hk: usize, d: usize) -> Tensors {
    let kv = TensorLayout::bshd(2, sk, hk, d);
    let q = TensorLayout::bshd(2, sq, h, d);
    Tensors { q, k: kv, v: kv, o: q }
}

fn message(tensors: Tensors) -> String {
    Problem::new(tensors, DType::F16, Options::default()).unwrap_err().to_string()
}

#[test]
fn each_refusal_names_argument_value_and_limit() {
    assert_eq!(message(tensors(8, 8, 4, 4, 0)), "head_dim is 0; kernels take 1 to 256");
    assert_eq!(message(tensors(8, 8, 4, 4, 257)), "head_dim is 257; kernels take 1 to 256");
    assert_eq!(message(tensors(0, 8, 4, 4, 8)), "q: axis seqlen has length 0; at least 1 is needed");
    assert_eq!(message(tensors(8, 8, 4, 3, 8)), "kv_heads is 3, which does not divide heads = 4");
    let mut t = tensors(8, 8, 4, 4, 8);
    t.v.seqlen = 7;
    assert_eq!(message(t), "v: seqlen is 7, but k has 8");
    let mut t = tensors(8, 8, 4, 4, 8);
    t.v.head_dim = 257;
    assert_eq!(message(t), "v: head_dim is 257; kernels take 1 to 256");
    let mut t = tensors(8, 8, 4, 4, 8);
    t.v.head_dim = 5;
    assert_eq!(message(t), "o: head_dim is 8, but v has 5");
    let mut t = tensors(8, 8, 4, 4, 8);
    t.k.stride_dim = 2;
    assert_eq!(message(t), "k: stride of head_dim is 2; rows must be contiguous (stride 1)");
}

#[test]
fn a_softcap_is_off_or_positive() {
    for softcap in [0.0, 1e-30, 30.0] {
        let options = Options { softcap, ..Options::default() };
        let problem = Problem::new(tensors(8, 8, 4, 4, 8), DType::F16, options).unwrap();
        assert_eq!((problem.softcap(), problem.changes_scores()), (softcap, softcap != 0.0));
    }
    for softcap in [-1.0, 1e-40, 2e30, f32::INFINITY, f32::NAN] {
        let options = Options { softcap, ..Options::default() };
        let error = Problem::new(tensors(8, 8, 4, 4, 8), DType::F16, options).unwrap_err().to_string();
        assert!(error.ends_with("; 0 (off) or 1.1754944e-38 to 1e30 is needed"), "{error}");
    }
    let options = |softcap, scale| Options { softcap, softmax_scale: Some(scale), ..Options::default() };
    let problem = |softcap, scale| Problem::new(tensors(8, 8, 4, 4, 8), DType::F16, options(softcap, scale));
    assert!(problem(1e30, 0.0).is_ok() && problem(1e30, 1e-7).is_ok());
    assert_eq!(
        problem(1e10, 1e-30).unwrap_err().to_string(),
        "softcap is 10000000000; softmax_scale = 1e-30 divided by it is outside of fp32's normal numbers"
    );
}

#[test]
fn slopes_and_sinks_are_by_head_or_by_sequence_and_head() {
    let new = |slopes: &[f32]| {
        let options = Options { alibi_slopes: Some(slopes.to_vec()), ..Options::default() };
        Problem::new(tensors(8, 8, 3, 3, 8), DType::F16, options)
    };
    let by_head = new(&[1.0, 2.0, 3.0]).unwrap();
    assert_eq!((by_head.alibi_slope(0, 1), by_head.alibi_slope(1, 1)), (2.0, 2.0));
    let by_both = new(&[1.0, 2.0, 3.0, 4.0, 5.0, 6.0]).unwrap();
    assert_eq!((by_both.alibi_slope(0, 1), by_both.alibi_slope(1, 1)), (2.0, 5.0));
    assert_eq!(
        new(&[1.0, 2.0]).unwrap_err().to_string(),
        "alibi_slopes has 2 elements; 3 (one per head) or 6 (one per sequence and head) are needed"
    );
    assert_eq!(
        new(&[1.0, 2.0, f32::INFINITY]).unwrap_err().to_string(),
        "alibi_slopes: element 2 is inf; a finite number is needed"
    );
    let sinks = |sinks| {
        let options = Options { sinks: Some(sinks), ..Options::default() };
        Problem::new(tensors(8, 8, 3, 3, 8), DType::F16, options)
    };
    assert_eq!(
        sinks(vec![1.0; 5]).unwrap_err().to_string(),
        "sinks has 5 elements; 3 (one per head) or 6 (one per sequence and head) are needed"
    );
    assert_eq!(
        sinks(vec![f32::NAN; 3]).unwrap_err().to_string(),
        "sinks: element 0 is NaN; a finite number is needed"
    );
    let gradients = |sinks| crate::backward::BackwardProblem::like(sinks).unwrap().sinks();
    assert_eq!(gradients(sinks(vec![1.0; 3]).unwrap()).unwrap(), 3);
    assert_eq!(gradients(sinks(vec![1.0; 6]).unwrap()).unwrap(), 6);
}

/// Values of lists that the device alone has: launches take their addresses, and runs on the host need them.
#[test]
fn lists_on_the_device_are_planned_by_their_number() {
    let of = |options: Options| Problem::new(tensors(8, 8, 3, 3, 8), DType::F32, options);
    let on_device = |alibi_slopes, sinks| Options {
        on_device: crate::forward::PerHead { alibi_slopes, sinks },
        ..Options::default()
    };
    let problem = of(on_device(Some(3), Some(6))).unwrap();
    assert!(problem.changes_scores() && problem.per_head().sinks == Some(&[]));
    let addresses = crate::forward::PerHead { alibi_slopes: Some(64), sinks: Some(128) };
    let params = problem.scores().params(&addresses).unwrap();
    assert_eq!((params.alibi_slopes.batch_stride, params.sinks.batch_stride), (0, 3));
    let backend = crate::Backend::open(Some(crate::BackendKind::Cpu)).unwrap();
    let plan = backend.plan(&problem, &crate::Request::default()).unwrap();
    let len = problem.tensors().q.span();
    let (tensor, mut o) = (vec![0.0_f32; len], vec![0.0_f32; len]);
    let outputs = crate::forward::Outputs { o: &mut o, lse: None };
    assert_eq!(
        backend.run(&plan, (&tensor, &tensor, &tensor), outputs).unwrap_err().to_string(),
        "alibi_slopes: the device alone has the values of this plan, and a run on host tensors needs them"
    );
    assert_eq!(
        of(on_device(None, Some(4))).unwrap_err().to_string(),
        "sinks has 4 elements; 3 (one per head) or 6 (one per sequence and head) are needed"
    );
    assert_eq!(
        of(Options { sinks: Some(vec![0.5; 3]), ..on_device(None, Some(3)) }).unwrap_err().to_string(),
        "sinks: values are given, and as many that the device has; one of them is needed"
    );
}

#[test]
fn used_keys_shorten_their_sequences() {
    let options = Options { causal: true, ..Options::default() };
    let whole = Problem::new(tensors(3, 8, 4, 4, 8), DType::F16, options).unwrap();
    let problem = whole.with_seqused_k(&[8, 5]).unwrap();
    assert_eq!((problem.key_rows(0), problem.key_rows(1), problem.seqlen_k()), (0..8, 0..5, 8));
    // Aligned to the last used key.
    assert_eq!((problem.visible_keys(0, 2), problem.visible_keys(1, 2)), (0..8, 0..5));
    assert_eq!((problem.visible_keys(1, 0), problem.diagonal(1, 0)), (0..3, 2));
    let error = |used: &[i32]| whole.with_seqused_k(used).unwrap_err().to_string();
    assert_eq!(error(&[8]), "seqused_k: batch is 1, but the problem has 2");
    assert_eq!(error(&[8, 9]), "seqused_k[1] is 9; a sequence has room for 8 keys");
    assert_eq!(error(&[-1, 3]), "seqused_k[0] is -1; a sequence has room for 8 keys");
    let planned = problem.on_device((3, 8)).unwrap();
    assert_eq!((planned.has_seqused_k(), planned.seqused_k(), planned.key_rows(1)), (true, None, 0..8));
    assert!(!whole.on_device((3, 8)).unwrap().has_seqused_k());
}

#[test]
fn used_keys_of_a_packed_batch_are_bounded_by_their_sequence() {
    let layout = TensorLayout::bshd(1, 10, 1, 8);
    let tensors = Tensors { q: layout, k: layout, v: layout, o: layout };
    let whole = Problem::varlen(tensors, DType::F32, Options::default(), &[0, 4, 10], &[0, 6, 9]).unwrap();
    let problem = whole.with_seqused_k(&[2, 3]).unwrap();
    assert_eq!((problem.key_rows(0), problem.key_rows(1)), (0..2, 6..9));
    let error = whole.with_seqused_k(&[2, 4]).unwrap_err().to_string();
    assert_eq!(error, "seqused_k[1] is 4; a sequence has room for 3 keys");
}
