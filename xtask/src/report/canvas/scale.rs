//! From values to pixels.

/// A linear or logarithmic axis.
#[derive(Clone, Debug)]
pub(super) struct Scale {
    from: f64,
    to: f64,
    pixels: (i32, i32),
    logarithmic: bool,
}

impl Scale {
    /// A scale that all of `values` fit on; a linear one begins at 0 where `zero` says so.
    pub(super) fn over(values: &[f64], pixels: (i32, i32), logarithmic: bool, zero: bool) -> Self {
        let (least, most) =
            values.iter().fold((f64::INFINITY, f64::NEG_INFINITY), |(least, most), &value| {
                (least.min(value), most.max(value))
            });
        let (from, to) = match logarithmic {
            true => (least / 1.25, most * 1.25),
            false => {
                let gap = 0.05 * (most - least).max(most.abs() * 1e-3);
                (if zero { 0.0 } else { least - gap }, most + gap)
            }
        };
        Self { from, to, pixels, logarithmic }
    }

    pub(super) fn at(&self, value: f64) -> i32 {
        let fraction = match self.logarithmic {
            true => (value / self.from).ln() / (self.to / self.from).ln(),
            false => (value - self.from) / (self.to - self.from),
        };
        let (first, last) = (f64::from(self.pixels.0), f64::from(self.pixels.1));
        (first + fraction.clamp(-0.5, 1.5) * (last - first)).round() as i32
    }

    /// Round values on the scale.
    pub(super) fn ticks(&self) -> Vec<f64> {
        let within = |value: &f64| (self.from..=self.to).contains(value);
        if self.logarithmic {
            let decades = self.from.log10().floor() as i32..=self.to.log10().ceil() as i32;
            let wide = self.to / self.from > 1e3;
            let steps: &[f64] = if wide { &[1.0] } else { &[1.0, 2.0, 5.0] };
            let of = |decade: i32| steps.iter().map(move |step| step * 10_f64.powi(decade));
            return decades.flat_map(of).filter(within).collect();
        }
        let raw = (self.to - self.from) / 6.0;
        let decade = 10_f64.powf(raw.log10().floor());
        let step = [1.0, 2.0, 5.0, 10.0].map(|step| step * decade);
        let step = step.into_iter().find(|&step| step >= raw).unwrap_or(10.0 * decade);
        let first = (self.from / step).ceil() as i64;
        (first..first + 20).map(|index| index as f64 * step).filter(within).collect()
    }
}

/// Of the values those that are at least `gap` pixels apart, so that their labels are too.
pub(super) fn apart(scale: &Scale, values: &[f64], gap: i32) -> Vec<f64> {
    let mut kept: Vec<f64> = Vec::new();
    for &value in values {
        if kept.last().is_none_or(|&last| (scale.at(value) - scale.at(last)).abs() >= gap) {
            kept.push(value);
        }
    }
    kept
}

/// A tick's value, as short as it can be: lengths of 1024 and more in K.
pub(in super::super) fn number(value: f64) -> String {
    match value.abs() {
        0.0 => "0".to_owned(),
        v if v >= 1024.0 && v % 1024.0 == 0.0 => format!("{}K", value / 1024.0),
        v if !(1e-3..1e7).contains(&v) => format!("{value:.0e}"),
        _ => format!("{}", (value * 1e6).round() / 1e6),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn scales_go_from_end_to_end_and_have_round_ticks() {
        let scale = Scale { from: 0.0, to: 60.0, pixels: (100, 0), logarithmic: false };
        assert_eq!([scale.at(0.0), scale.at(30.0), scale.at(60.0)], [100, 50, 0]);
        assert_eq!(scale.ticks(), [0.0, 10.0, 20.0, 30.0, 40.0, 50.0, 60.0]);
        let scale = Scale { from: 1.0, to: 100.0, pixels: (0, 100), logarithmic: true };
        assert_eq!([scale.at(1.0), scale.at(10.0), scale.at(100.0)], [0, 50, 100]);
        assert_eq!(scale.ticks(), [1.0, 2.0, 5.0, 10.0, 20.0, 50.0, 100.0]);
    }

    #[test]
    fn ticks_keep_their_distance() {
        let scale = Scale { from: 1.0, to: 101.0, pixels: (0, 100), logarithmic: false };
        assert_eq!(apart(&scale, &[1.0, 2.0, 60.0, 70.0], 48), [1.0, 60.0]);
        let down = Scale { from: 1.0, to: 101.0, pixels: (100, 0), logarithmic: false };
        assert_eq!(apart(&down, &[1.0, 2.0, 60.0, 70.0], 48), [1.0, 60.0]);
        assert_eq!([number(0.0), number(512.0), number(0.25), number(2e-6)], ["0", "512", "0.25", "2e-6"]);
        assert_eq!([number(4096.0), number(131072.0), number(5000.0)], ["4K", "128K", "5000"]);
    }
}
