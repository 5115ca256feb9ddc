use super::super::series::look;
use super::*;

fn axis(values: &[f64]) -> Axis {
    Axis { label: "axis".into(), logarithmic: false, values: values.into(), ticks: Vec::new() }
}

#[test]
fn grey_tells_series_apart_by_their_shape() {
    let (x, y) = (axis(&[0.0, 1.0]), axis(&[0.0, 1.0]));
    let shapes =
        ["forward_sm90", "torch CUDNN_ATTENTION", "torch FLASH_ATTENTION", "torch MATH"].map(|name| {
            let curve = Curve { look: look(name), points: vec![(0.5, 0.5)] };
            let panel = lines("", (&x, &y), &[curve], false, &[]).unwrap().svg;
            let marks: Vec<_> =
                panel.lines().filter(|line| line.contains("<circle") || line.contains("<polygon")).collect();
            assert_eq!(marks.len(), 1, "{panel}");
            let points = marks[0].split("points=").nth(1);
            points.map(|points| points.split('"').nth(1).unwrap().to_owned())
        });
    for (index, shape) in shapes.iter().enumerate() {
        assert!(!shapes[..index].contains(shape), "{shapes:?}");
    }
}

#[test]
fn the_librarys_own_stand_out_and_lie_on_top() {
    let (x, y) = (axis(&[0.0, 1.0]), axis(&[0.0, 1.0]));
    let curve = |name| Curve { look: look(name), points: vec![(0.0, 0.5), (1.0, 0.5)] };
    let panel = lines("", (&x, &y), &[curve("forward_sm90"), curve("torch MATH")], true, &[]).unwrap();
    let widths: Vec<_> = panel.svg.lines().filter(|line| line.contains("<polyline")).collect();
    let [.., peer, own] = &widths[..] else { panic!("{widths:?}") };
    assert!(peer.contains("stroke-width=\"2\"") && own.contains("stroke-width=\"4\""), "{peer} {own}");
}

#[test]
fn a_bar_is_as_long_as_its_share() {
    let bar = |value| Bar { look: look("decode"), value, text: format!("{value} us") };
    let panel = bars("S=1", "latency", &[bar(1.0), bar(2.0)], 4.0).unwrap();
    let widths = panel.svg.lines().filter(|line| line.contains("<rect") && line.contains("#0072B2"));
    let width = |line: &str| line.split(" width=\"").nth(1)?.split('"').next()?.parse::<i32>().ok();
    let widths: Vec<_> = widths.filter_map(width).collect();
    assert_eq!(widths, [40, 80]);
    assert_eq!(shortened("one of 100 calls behind one another").chars().count(), 28);
}
