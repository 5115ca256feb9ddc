//! How a series looks: one colour, mark and label in every chart.

use plotters::style::RGBColor;

use super::canvas::INK;

/// Colours with a contrast of 3 or more on white and on the dark page, which colour-blind readers tell apart
/// (after Okabe and Ito 2008): blue is kept for the library's own kernels.
const BLUE: RGBColor = RGBColor(0, 114, 178);
const SKY: RGBColor = RGBColor(61, 148, 204);
const SLATE: RGBColor = RGBColor(107, 132, 148);
const VERMILION: RGBColor = RGBColor(213, 94, 0);
const GREEN: RGBColor = RGBColor(0, 153, 111);
const PURPLE: RGBColor = RGBColor(166, 76, 166);
const PINK: RGBColor = RGBColor(201, 117, 164);
const AMBER: RGBColor = RGBColor(176, 120, 0);
const GREY: RGBColor = RGBColor(128, 128, 136);
const BROWN: RGBColor = RGBColor(140, 98, 57);

/// The shape at a point, so that grey tells series apart too.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Mark {
    Circle,
    Square,
    Up,
    Diamond,
    Down,
}

/// A series, as charts show it.
#[derive(Clone, Debug, PartialEq)]
pub(super) struct Look {
    pub(super) label: String,
    pub(super) colour: RGBColor,
    pub(super) mark: Mark,
    /// Whether the library's own kernel, which stands out.
    pub(super) own: bool,
}

/// Peers by a part of their series' name, the first that fits, with what people call them.
const PEERS: [(&str, &str, RGBColor, Mark); 11] = [
    ("cudnn", "cuDNN", VERMILION, Mark::Square),
    ("attention-4 deterministic", "FlashAttention-4", AMBER, Mark::Down),
    ("attention-4", "FlashAttention-4", PURPLE, Mark::Diamond),
    ("attention_4", "FlashAttention-4", PURPLE, Mark::Diamond),
    ("fa4", "FlashAttention-4", PURPLE, Mark::Diamond),
    ("flash", "FlashAttention-2", GREEN, Mark::Up),
    ("efficient", "memory-efficient", PINK, Mark::Diamond),
    ("math", "math", GREY, Mark::Down),
    ("default", "PyTorch's default", INK, Mark::Square),
    ("matmul", "cuBLAS", AMBER, Mark::Square),
    ("cublas", "cuBLAS", AMBER, Mark::Square),
];

/// The library's kernels by a part of their name, the first that fits.
const OWN: [(&str, RGBColor, Mark); 7] = [
    ("gemm_sm90", BLUE, Mark::Diamond),
    ("gemm_sm80", SKY, Mark::Diamond),
    ("simt", SLATE, Mark::Down),
    ("backward", BLUE, Mark::Circle),
    ("sm80", SKY, Mark::Up),
    ("sm90", BLUE, Mark::Circle),
    ("decode", BLUE, Mark::Up),
];

/// The kernel that stores S and P, which every other one is to beat.
pub(super) const STANDARD: &str = "standard";

/// The library's kernels together, as they serve requests.
const SERVED: &str = "flash-attention";

/// How a document's series looks.
pub(super) fn look(series: &str) -> Look {
    let name = series.to_lowercase();
    let own = |part: &str| name.starts_with(part);
    if own("forward_") || own("backward_") || own("gemm_") || own("decode") || name == SERVED {
        let found = OWN.iter().find(|(part, ..)| name.contains(part));
        let (colour, mark) = found.map_or((BLUE, Mark::Circle), |&(_, colour, mark)| (colour, mark));
        return Look { label: series.to_owned(), colour, mark, own: true };
    }
    if name == STANDARD {
        let label = "unfused (standard)".to_owned();
        return Look { label, colour: BROWN, mark: Mark::Square, own: false };
    }
    match PEERS.iter().find(|(part, ..)| name.contains(part)) {
        Some(&(_, label, colour, mark)) => {
            // `torch FLASH_ATTENTION with copies` says more than its backend.
            let more = [" with ", " deterministic"].iter().find_map(|part| series.find(part));
            let more = more.map_or("", |at| &series[at..]);
            Look { label: format!("{label}{more}"), colour, mark, own: false }
        }
        None => Look { label: series.to_owned(), colour: SLATE, mark: Mark::Circle, own: false },
    }
}

/// Sides of a problem on several GPUs by the beginning of their series' name, the first that fits, with
/// whether it is the library's.
const SIDES: [(&str, RGBColor, bool); 6] = [
    ("together, nccl", SKY, true),
    ("together", BLUE, true),
    ("one GPU", BROWN, false),
    ("each by itself", GREY, false),
    ("PyTorch context_parallel, cudnn", VERMILION, false),
    ("PyTorch", GREEN, false),
];

/// How a side of so many GPUs looks: its colour is the side's, its mark the number's.
pub(super) fn side(series: &str, gpus: usize) -> Look {
    let found = SIDES.iter().find(|(start, ..)| series.starts_with(start));
    let &(_, colour, own) = found.unwrap_or(&("", SLATE, false));
    let mark = match gpus {
        1 => Mark::Down,
        2 => Mark::Circle,
        4 => Mark::Square,
        8 => Mark::Diamond,
        _ => Mark::Up,
    };
    let label = if gpus > 1 { format!("{series}, {gpus} GPUs") } else { series.to_owned() };
    Look { label, colour, mark, own }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// WCAG 2.2, relative luminance.
    fn luminance(RGBColor(r, g, b): RGBColor) -> f64 {
        let linear = |part: u8| match f64::from(part) / 255.0 {
            c if c <= 0.04045 => c / 12.92,
            c => ((c + 0.055) / 1.055).powf(2.4),
        };
        0.2126 * linear(r) + 0.7152 * linear(g) + 0.0722 * linear(b)
    }

    #[test]
    fn every_colour_shows_on_light_and_dark_paper() {
        let peers = PEERS.iter().map(|peer| peer.2).filter(|&colour| colour != INK);
        let own = OWN.iter().map(|own| own.1);
        let sides = SIDES.iter().map(|side| side.1);
        for colour in peers.chain(own).chain(sides).chain([SLATE, BROWN]) {
            let light = 1.05 / (luminance(colour) + 0.05);
            let dark = (luminance(colour) + 0.05) / (luminance(RGBColor(0x16, 0x17, 0x1b)) + 0.05);
            assert!(light >= 3.0 && dark >= 3.0, "{colour:?}: {light:.2} on light, {dark:.2} on dark");
        }
    }

    #[test]
    fn series_that_meet_in_a_chart_differ_in_colour_or_mark() {
        let names = [
            "forward_sm90",
            "forward_sm80",
            "forward_simt",
            "gemm_sm90",
            "gemm_sm80",
            "decode",
            "standard",
            "torch CUDNN_ATTENTION",
            "torch FLASH_ATTENTION",
            "torch EFFICIENT_ATTENTION",
            "torch MATH",
            "torch default",
            "torch matmul",
            "torch FlashAttention-4",
            "torch FlashAttention-4 deterministic",
        ];
        let looks = names.map(look);
        for (index, one) in looks.iter().enumerate() {
            for other in &looks[..index] {
                assert!((one.colour, one.mark) != (other.colour, other.mark), "{one:?} {other:?}");
            }
        }
        let sides = ["together, peer", "each by itself", "PyTorch context_parallel, flash"];
        let sides = sides.map(|series| [2, 4, 8].map(|gpus| side(series, gpus)));
        let others =
            [side("one GPU", 1), side("PyTorch context_parallel, cudnn", 2), side("together, nccl-ce", 2)];
        let sides: Vec<_> = sides.into_iter().flatten().chain(others).collect();
        for (index, one) in sides.iter().enumerate() {
            for other in &sides[..index] {
                assert!((one.colour, one.mark) != (other.colour, other.mark), "{one:?} {other:?}");
            }
        }
        assert_eq!((&*sides[1].label, sides[1].own), ("together, peer, 4 GPUs", true));
        assert_eq!(looks[7].label, "cuDNN");
        assert!(look(SERVED).own && look(SERVED).label == SERVED);
        assert_eq!(look("torch MATH with copies").label, "math with copies");
        assert_eq!(look("FlashAttention-4 deterministic").label, "FlashAttention-4 deterministic");
        assert_eq!(looks.iter().filter(|look| look.own).count(), 6);
    }
}
