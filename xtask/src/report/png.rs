//! Plots as PNG, for places that show no SVG.

use std::sync::Arc;

use anyhow::{Context as _, Result};
use resvg::tiny_skia::{Pixmap, Transform};
use resvg::usvg::{Options, Tree, fontdb};

/// Pixels for each of the SVG's, so that text stays sharp.
const SCALE: f32 = 2.0;

/// Paints with the fonts of this machine.
pub(super) struct Painter {
    options: Options<'static>,
}

impl Painter {
    /// `None` where the machine has no fonts, without which axes would have no labels.
    pub(super) fn new() -> Option<Self> {
        let mut fonts = fontdb::Database::new();
        fonts.load_system_fonts();
        // What stands for `sans-serif` may not be here; any face is better than none.
        let family = fonts.faces().find_map(|face| Some(face.families.first()?.0.clone()));
        let known = ["DejaVu Sans", "Liberation Sans", "Noto Sans", "Arial", "Helvetica"];
        let has =
            |name: &&str| fonts.faces().any(|face| face.families.iter().any(|(family, _)| family == name));
        let chosen = known.into_iter().find(has).map(str::to_owned).or(family)?;
        fonts.set_sans_serif_family(chosen);
        Some(Self { options: Options { fontdb: Arc::new(fonts), ..Options::default() } })
    }

    /// An SVG as PNG.
    ///
    /// # Errors
    /// When it is no SVG, or too large.
    pub(super) fn paint(&self, svg: &str) -> Result<Vec<u8>> {
        let pixels = pixels(&Tree::from_str(svg, &self.options)?)?;
        pixels.encode_png().context("a plot cannot be written as PNG")
    }
}

fn pixels(tree: &Tree) -> Result<Pixmap> {
    let size = tree.size().to_int_size();
    let side = |length: u32| (length as f32 * SCALE) as u32;
    let mut pixels = Pixmap::new(side(size.width()), side(size.height())).context("a plot has no size")?;
    resvg::render(tree, Transform::from_scale(SCALE, SCALE), &mut pixels.as_mut());
    Ok(pixels)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn shapes_are_where_the_svg_has_them() {
        let svg = "<svg xmlns=\"http://www.w3.org/2000/svg\" width=\"20\" height=\"10\"><rect x=\"10\" y=\"0\" \
                   width=\"10\" height=\"10\" fill=\"#0072B2\"/></svg>";
        let painted = pixels(&Tree::from_str(svg, &Options::default()).unwrap()).unwrap();
        assert_eq!((painted.width(), painted.height()), (40, 20));
        let colour =
            |x, y| painted.pixel(x, y).map(|pixel| (pixel.red(), pixel.green(), pixel.blue(), pixel.alpha()));
        assert_eq!([colour(30, 10), colour(10, 10)], [Some((0, 0x72, 0xb2, 255)), Some((0, 0, 0, 0))]);
    }
}
