#![allow(clippy::unwrap_used)]
use super::*;

const HEADER: &str = ".version 7.8\n.target sm_75\n.address_size 64\n";
const DYNAMIC: &str = ".extern .shared .align 1024 .b8 dynamic_shared[];\n";
/// What LLVM writes for an entry with one barrier.
const GOOD: &str = ".visible .entry good(\n\t.param .b64 good_param_0\n)\n{\n\t.reg .b32 \t%r<2>;\n\n\tmov.b32 \t%r1, dynamic_shared;\n\t// begin inline asm\n\tst.shared.b32 [%r1], 0;\n\t// end inline asm\n\tbar.sync \t0, 128;\n\tret;\n\n}\n";

fn spec() -> EntrySpec {
    EntrySpec {
        name: "good".to_owned(),
        family: "test".to_owned(),
        dtype: "f32".to_owned(),
        target: "sm_75".to_owned(),
        threads: 128,
        min_blocks: 1,
        shared_bytes: 512,
        barriers: 1,
        begins_early: false,
    }
}

fn parse(body: &str) -> Module {
    Module::parse(&format!("{HEADER}{DYNAMIC}{body}")).unwrap()
}

/// The violations of one entry's text, as lines.
fn of_entry(body: &str) -> Vec<String> {
    entry(&parse(body).entries[0], &spec()).iter().map(Violation::to_string).collect()
}

/// The violations of a module, as lines.
fn of_module(text: &str) -> Vec<String> {
    module(&parse(text), &[spec()]).iter().map(Violation::to_string).collect()
}

/// The violations in ptxas's output for an entry, as lines.
fn of_report(report: &str) -> Vec<String> {
    let report = Assembled::parse("sm_90", report).unwrap();
    assembled(&spec(), &report).iter().map(Violation::to_string).collect()
}

#[test]
fn a_good_entry_passes_every_gate() {
    assert!(of_entry(GOOD).is_empty());
    assert!(of_module(GOOD).is_empty());
    assert!(of_report(CLEAN).is_empty());
}

#[test]
fn local_memory_is_refused() {
    let depot = GOOD.replace("\t.reg .b32", "\t.local .align 16 .b8 \t__local_depot0[64];\n\t.reg .b32");
    assert_eq!(of_entry(&depot), ["good: local memory: `.local` in the PTX"]);
    let store = GOOD.replace("\tret;", "\tst.local.v2.b32 \t[%rd1+8], {%r1, %r2};\n\tret;");
    assert_eq!(of_entry(&store), ["good: local memory: `st.local.v2.b32` in the PTX"]);
    let address = GOOD.replace("\tret;", "\tcvta.to.local.u64 \t%rd2, %rd1;\n\tret;");
    assert_eq!(of_entry(&address), ["good: local memory: `cvta.to.local.u64` in the PTX"]);
}

#[test]
fn a_call_is_refused() {
    let call = GOOD.replace(
        "\tret;",
        "\t{ // callseq 0, 0\n\t.param .b32 param0;\n\tst.param.b32 \t[param0], %r1;\n\tcall.uni (retval0), fmaf, (param0);\n\t} // callseq 0\n\tret;",
    );
    assert_eq!(of_entry(&call), ["good: call: `call.uni` in the PTX"]);
    let indirect = GOOD.replace("\tret;", "\tcall %rd1, prototype;\n\tret;");
    assert_eq!(of_entry(&indirect), ["good: call: `call` in the PTX"]);
}

#[test]
fn a_function_without_a_body_is_refused() {
    let text = format!(
        ".extern .func  (.param .b32 func_retval0) fmaf\n(\n\t.param .b32 fmaf_param_0\n)\n;\n{GOOD}"
    );
    assert_eq!(of_module(&text), ["the module of sm_75: call: the function without a body fmaf"]);
}

#[test]
fn a_copied_or_lost_barrier_is_refused() {
    for copy in [
        "bar.sync \t0, 128;",
        "@%p1 barrier.sync.aligned \t0, 128;",
        "barrier.cta.sync.aligned.all 1;",
        "bar.arrive 1, 64;",
        "bar.red.popc.u32 %r1, 0, %p1;",
    ] {
        let text = GOOD.replace("\tret;", &format!("\t{copy}\n\tret;"));
        assert_eq!(of_entry(&text), ["good: barriers: 2 in the PTX, 1 in the source"], "{copy}");
    }
    let text = GOOD.replace("\tbar.sync \t0, 128;\n", "");
    assert_eq!(of_entry(&text), ["good: barriers: 0 in the PTX, 1 in the source"]);
}

#[test]
fn an_entry_that_begins_early_waits() {
    let early = EntrySpec { begins_early: true, ..spec() };
    let of = |body: &str| {
        let violations = entry(&parse(body).entries[0], &early);
        violations.iter().map(Violation::to_string).collect::<Vec<_>>()
    };
    let refusal = "good: no wait: its launch begins early, and the PTX has no griddepcontrol.wait";
    assert_eq!(of(GOOD), [refusal]);
    assert_eq!(of(&GOOD.replace("\tret;", "\tgriddepcontrol.launch_dependents;\n\tret;")), [refusal]);
    assert!(of(&GOOD.replace("\tret;", "\tgriddepcontrol.wait;\n\tret;")).is_empty());
}

#[test]
fn warp_and_cluster_barriers_do_not_count() {
    let text = GOOD.replace(
        "\tret;",
        "\tbar.warp.sync \t-1;\n\tbarrier.cluster.arrive.aligned;\n\tbarrier.cluster.wait.aligned;\n\tret;",
    );
    assert!(of_entry(&text).is_empty());
}

#[test]
fn an_entry_that_is_missing_or_unlisted_is_refused() {
    assert_eq!(
        of_module(&GOOD.replace("good", "other")),
        [
            "good: missing entry: it is listed for sm_75, and the PTX has no such entry",
            "other: unlisted entry: the PTX has it, and the list of entries does not",
        ]
    );
}

#[test]
fn an_entry_of_another_target_is_refused() {
    let newer = EntrySpec { target: "sm_80".to_owned(), ..spec() };
    let violations = module(&parse(GOOD), std::slice::from_ref(&newer));
    let lines: Vec<String> = violations.iter().map(Violation::to_string).collect();
    assert_eq!(lines, ["good: unlisted entry: the PTX for sm_75 has it, and it is listed for sm_80"]);
    // The module of sm_75 lacks what is listed for sm_80, as it should.
    let other = EntrySpec { name: "other".to_owned(), ..newer };
    assert!(module(&parse(GOOD), &[spec(), other]).is_empty());
}

#[test]
fn global_data_is_refused_and_its_users_named() {
    let location = ".visible .global .align 8 .u64 anon_7[3] = {generic(anon_6), 24, 0};\n";
    let text = format!("{location}{}", GOOD.replace("\tret;", "\tmov.b64 \t%rd1, anon_7;\n\tret;"));
    assert_eq!(of_module(&text), ["good: global data: the variable anon_7"]);
    let text = format!(".global .align 1 .b8 message[3] = {{112, 97, 110}};\n{GOOD}");
    assert_eq!(of_module(&text), ["the module of sm_75: global data: the variable message"]);
}

#[test]
fn static_shared_memory_is_refused() {
    let text = format!(".shared .align 4 .b8 tile[64];\n{GOOD}");
    assert_eq!(of_module(&text), ["the module of sm_75: static shared memory: the shared variable tile"]);
    let report = CLEAN.replace("used 1 barriers", "used 1 barriers, 16 bytes smem");
    assert_eq!(of_report(&report), ["good: static shared memory: 16 bytes on sm_90"]);
}

/// ptxas 13.0 on an entry that passes.
const CLEAN: &str = "ptxas info    : 0 bytes gmem
ptxas info    : Compiling entry function 'good' for 'sm_90'
ptxas info    : Function properties for good
    0 bytes stack frame, 0 bytes spill stores, 0 bytes spill loads
ptxas info    : Used 122 registers, used 1 barriers
ptxas info    : Compile time = 115.078 ms
";

#[test]
fn spills_and_stack_frames_are_refused() {
    let spilled = CLEAN.replace(
        "0 bytes stack frame, 0 bytes spill stores, 0 bytes spill loads",
        "24 bytes stack frame, 20 bytes spill stores, 28 bytes spill loads",
    );
    assert_eq!(
        of_report(&spilled),
        ["good: spill: 20 bytes of spill stores, 28 of spill loads, 24 of stack frame on sm_90"]
    );
    let framed = CLEAN.replace("0 bytes stack frame", "64 bytes stack frame");
    assert_eq!(
        of_report(&framed),
        ["good: spill: 0 bytes of spill stores, 0 of spill loads, 64 of stack frame on sm_90"]
    );
}

#[test]
fn serialised_wgmma_is_refused() {
    let line = "ptxas info    : (C7510) Potential Performance Loss: wgmma.mma_async instructions are serialized due to insufficient register resources for the wgmma pipeline in the function 'good'";
    let violations = of_report(&format!("{line}\n{CLEAN}"));
    assert_eq!(violations, [format!("good: wgmma serialised: `{line}` on sm_90")]);
}

#[test]
fn registers_that_do_not_move_are_refused() {
    let line = "ptxas info    : (C7508) Potential Performance Loss: 'setmaxnreg' ignored to maintain minimum register requirements.";
    let violations = of_report(&format!("{line}\n{CLEAN}"));
    assert_eq!(violations, [format!("good: setmaxnreg ignored: `{line}` on sm_90")]);
}
