use super::*;
use fa_kernels::entries::variants;

/// What is asked for of nothing but `kernel`.
fn nothing(kernel: Family) -> Space {
    Space {
        kernel,
        dtype: DType::F16,
        block_m: Vec::new(),
        block_n: Vec::new(),
        warps: Vec::new(),
        stages: Vec::new(),
        min_blocks: Vec::new(),
        head_dims: Vec::new(),
        operands: Vec::new(),
    }
}

fn space(kernel: Family, warps: &[u32]) -> Space {
    Space {
        block_m: vec![64, 128],
        block_n: vec![32, 64],
        warps: warps.to_vec(),
        min_blocks: vec![1, 2],
        head_dims: vec![128, 129],
        ..nothing(kernel)
    }
}

#[test]
fn head_dims_go_to_the_smallest_tile_that_holds_them() {
    let mut space = space(Family::ForwardSm80, &[4]);
    space.head_dims = vec![129, 64, 144, 129];
    let point = |head_dim| Point { head_dim, operands: None };
    assert_eq!(space.buckets(16), [(144, vec![point(129), point(144)]), (64, vec![point(64)])]);
    assert_eq!(space.buckets(32), [(160, vec![point(129), point(144)]), (64, vec![point(64)])]);
    assert_eq!(space.points(), [64, 129, 144].map(point));
}

#[test]
fn every_combination_is_there_and_budgets_that_change_nothing_are_not() {
    let candidates = space(Family::ForwardSm80, &[4, 8]).candidates(&Limits::of(90));
    let of = |m: u32, n: u32, d: u32, warps: u32| {
        let is_it = |candidate: &&Candidate| {
            let tile = candidate.variant.config.tile();
            (tile.block_m, tile.block_n, tile.head_dim) == (m, n, d)
                && candidate.variant.config.warps() == warps
        };
        let budgets = candidates.iter().filter(is_it);
        budgets.map(|one| (one.variant.min_blocks, one.verdict.is_ok())).collect::<Vec<_>>()
    };
    // Four warps have 255 registers either way, if two blocks fit.
    assert_eq!(of(128, 32, 128, 4), [(2, true)]);
    // Eight warps have 128 or 255: here S and O need 96.
    assert_eq!(of(128, 64, 128, 8), [(2, true), (1, true)]);
    // A tile that cannot be split over eight warps is rejected once.
    assert_eq!(of(64, 64, 144, 8), [(2, false)]);
    let of_one = |one: &Candidate| one.points.len() == 1 && [128, 129].contains(&one.points[0].head_dim);
    assert!(candidates.iter().all(of_one));
    let simt = space(Family::ForwardSimt, &[]).candidates(&Limits::of(90));
    assert!(simt.iter().any(|one| one.variant.name() == "forward_simt_f16_m128_n64_d160"));
}

#[test]
fn what_a_tile_does_not_have_cannot_be_asked_for() {
    let error = |asked: Space| Space::new(asked).unwrap_err().to_string();
    let message =
        |name: &str, kernel: &str| format!("--{name}: a tile of {kernel} has nothing there to choose");
    for (name, asked) in [
        ("warps", Space { warps: vec![4], ..nothing(Family::ForwardSimt) }),
        ("min-blocks", Space { min_blocks: vec![2], ..nothing(Family::ForwardSm90) }),
        ("block-n", Space { block_n: vec![64], ..nothing(Family::Decode) }),
        ("stages", Space { stages: vec![3], ..nothing(Family::BackwardSm80) }),
        ("operands", Space { operands: Layout::ALL.to_vec(), ..nothing(Family::BackwardSm80) }),
        ("dim", Space { head_dims: vec![64], ..nothing(Family::GemmSm90) }),
    ] {
        let kernel = asked.kernel.name();
        assert_eq!(error(asked), message(name, kernel));
    }
}

#[test]
fn where_nothing_is_asked_for_the_listed_tiles_are_tried() {
    for kernel in [Family::Decode, Family::BackwardSm80, Family::BackwardSm90, Family::GemmSm90] {
        let space = Space::new(Space { operands: Vec::new(), ..nothing(kernel) }).unwrap();
        let candidates = space.candidates(&Limits::of(90));
        let head_dims: Vec<u32> = space.head_dims.iter().map(|&head_dim| head_dim as u32).collect();
        let mut found = 0;
        for listed in variants().filter(|listed| kernel.kernels().contains(&listed.kernel)) {
            let of_space = listed.dtype == Storage::F16
                && listed.config.layout().is_none_or(|layout| space.operands.contains(&layout))
                && (head_dims.is_empty() || head_dims.contains(&listed.tile().head_dim));
            if of_space {
                let tried = candidates.iter().any(|one| one.variant == listed && one.verdict.is_ok());
                assert!(tried, "{}", listed.id());
                found += 1;
            }
        }
        assert!(found >= 2, "{kernel}");
    }
}

#[test]
fn a_backward_pass_has_candidates_of_both_kernels_and_a_product_one_of_each_order() {
    let ids = |asked: Space| -> Vec<String> {
        let candidates = Space::new(asked).unwrap().candidates(&Limits::of(90));
        candidates.into_iter().filter(|one| one.verdict.is_ok()).map(|one| one.variant.id()).collect()
    };
    let backward = Space {
        block_m: vec![32, 128],
        block_n: vec![32, 128],
        warps: vec![4],
        head_dims: vec![64],
        ..nothing(Family::BackwardSm80)
    };
    let expected =
        ["backward_keys_sm80_f16_m32_n128_d64_w4_b2", "backward_queries_sm80_f16_m128_n32_d64_w4_b2"];
    assert_eq!(ids(backward), expected);
    let orders = vec![Layout::ALL[0], Layout::ALL[3]];
    let gemm = Space {
        block_n: vec![128],
        stages: vec![5, 6],
        operands: orders.clone(),
        ..nothing(Family::GemmSm90)
    };
    assert_eq!(gemm.points(), orders.iter().map(|&layout| Point::of(layout)).collect::<Vec<_>>());
    let of = |layout: &str, stages| format!("gemm_sm90_f16_m128_n128_k64_{layout}_b1_s{stages}");
    let expected = [of("row_row", 5), of("col_col", 5), of("row_row", 6), of("col_col", 6)];
    assert_eq!(ids(gemm), expected);
}

#[test]
fn a_space_survives_its_document() {
    let space = Space { operands: Layout::ALL.to_vec(), ..space(Family::ForwardSm80, &[4, 8]) };
    let text = serde_json::to_string(&space).unwrap();
    assert!(text.contains("\"kernel\":\"forward_sm80\",\"dtype\":\"f16\""), "{text}");
    assert_eq!(serde_json::from_str::<Space>(&text).unwrap(), space);
    assert!(serde_json::from_str::<Space>(&text.replace("sm80", "sm8")).is_err());
    assert!(serde_json::from_str::<Space>(&text.replace("row_col", "row")).is_err());
}
