//! The GPU's clock, and what holds it back, as `nvidia-smi` says it: a figure from a throttled device must
//! say so.

use std::process::{Command, Stdio};

use flash_attention::BackendKind;

/// What is asked for, in the order of the answer.
const QUERY: &str =
    "--query-gpu=clocks.sm,clocks.max.sm,temperature.gpu,power.draw,clocks_event_reasons.active";

/// Bits of the reasons that are no reason for doubt: idle, and clocks that an application chose
/// (`nvmlClocksEventReasons` in NVIDIA's NVML reference).
const HARMLESS: u64 = 0x1 | 0x2;

/// The state of a GPU in one sentence; `None` without one, or where nobody tells.
pub(super) fn state(kind: BackendKind, ordinal: usize) -> Option<String> {
    if kind != BackendKind::Cuda {
        return None;
    }
    let output = Command::new("nvidia-smi")
        .args([QUERY, "--format=csv,noheader,nounits", &format!("--id={ordinal}")])
        .stdin(Stdio::null())
        .stderr(Stdio::null())
        .output()
        .ok()?;
    sentence(&String::from_utf8(output.stdout).ok()?)
}

fn sentence(answer: &str) -> Option<String> {
    let fields: Vec<_> = answer.trim().split(',').map(str::trim).collect();
    let [clock, most, temperature, power, reasons] = fields[..] else { return None };
    let bits = u64::from_str_radix(reasons.trim_start_matches("0x"), 16).ok()?;
    let held = match bits & !HARMLESS {
        0 => "nothing holds it back".to_owned(),
        bits => format!("held back, for the reasons 0x{bits:x} of NVML"),
    };
    Some(format!("{clock} of {most} MHz, {temperature} °C, {power} W, {held}"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_answer_becomes_a_sentence() {
        assert_eq!(
            sentence("1980, 1980, 41, 123.45, 0x0000000000000001\n").unwrap(),
            "1980 of 1980 MHz, 41 °C, 123.45 W, nothing holds it back"
        );
        let throttled = sentence("1200, 1980, 88, 700.00, 0x0000000000000024").unwrap();
        assert!(throttled.ends_with("held back, for the reasons 0x24 of NVML"), "{throttled}");
        assert_eq!(sentence("Field is not a valid field to query."), None);
        assert_eq!(state(BackendKind::Cpu, 0), None);
    }
}
