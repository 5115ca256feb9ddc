//! A figure: panels that a page lays out as it has room, and one SVG of them all with title and legend.

use anyhow::Result;

use super::canvas::{self, Panel};
use super::series::Look;

/// A figure, by the name of its file without the ending.
pub(super) struct Figure {
    pub(super) name: String,
    pub(super) title: String,
    pub(super) panels: Vec<Panel>,
    /// How many panels stand beside one another where there is room.
    pub(super) columns: usize,
    pub(super) legend: Vec<Look>,
}

/// Pixels of the title's line, and of a line of the legend.
const TITLE: i32 = 34;
const LINE: i32 = 26;

impl Figure {
    /// Whether a panel is too wide for a phone, which then scrolls it.
    pub(super) fn is_wide(&self) -> bool {
        self.panels.iter().any(|panel| panel.width > canvas::WIDTH)
    }

    /// All of it in one SVG without scripts.
    ///
    /// # Errors
    /// When a mark or text cannot be drawn.
    pub(super) fn svg(&self) -> Result<String> {
        let columns = self.columns.clamp(1, self.panels.len().max(1));
        let widest = self.panels.iter().map(|panel| panel.width).max().unwrap_or(0);
        let width = widest * columns as i32;
        let mut body = canvas::title(width, TITLE, &self.title)?;
        let mut top = TITLE;
        let (mut x, mut rows) = (0, 0);
        for look in &self.legend {
            let (item, length) = canvas::legend_item(look)?;
            if x > 0 && x + length > width {
                (x, rows) = (0, rows + 1);
            }
            body.push_str(&at(&item, x, top + LINE * rows));
            x += length;
        }
        top += if self.legend.is_empty() { 0 } else { LINE * (rows + 1) };
        for row in self.panels.chunks(columns) {
            for (column, panel) in row.iter().enumerate() {
                body.push_str(&at(&panel.svg, widest * column as i32, top));
            }
            top += row.iter().map(|panel| panel.height).max().unwrap_or(0);
        }
        Ok(format!(
            "<svg width=\"{width}\" height=\"{top}\" viewBox=\"0 0 {width} {top}\" \
             xmlns=\"http://www.w3.org/2000/svg\">\n<rect width=\"{width}\" height=\"{top}\" fill=\"#FFFFFF\"/>\n\
             {body}</svg>\n"
        ))
    }
}

/// An SVG within another.
fn at(svg: &str, x: i32, y: i32) -> String {
    svg.replacen("<svg ", &format!("<svg x=\"{x}\" y=\"{y}\" "), 1)
}
