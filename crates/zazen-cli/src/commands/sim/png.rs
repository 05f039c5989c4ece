//! Plots as PNG pictures, for slides and papers that take no SVG. `tiny-skia` draws; the letters
//! are those of Noto Sans Mono, which come with the program, because a bare node has no fonts.

use noto_sans_mono_bitmap::{FontWeight, RasterHeight, get_raster, get_raster_width};
use tiny_skia::{
    Color, FillRule, LineCap, Paint, PathBuilder, Pixmap, PremultipliedColorU8, StrokeDash, Transform,
};
use zazen_core::{Error, ErrorKind, Result};
use zazen_sim::report::svg::{Anchor, COLOURS, Canvas, HEIGHT, Plot, Stroke, WIDTH};

/// Pixels for each unit of a drawing.
const SCALE: f32 = 2.0;
const INK: (u8, u8, u8) = (0x1b, 0x1f, 0x24);
const FAINT: (u8, u8, u8) = (0xd5, 0xda, 0xe1);

/// The plot as a PNG file.
pub(crate) fn png(plot: &Plot) -> Result<Vec<u8>> {
    let refuse = |why: String| Error::new(ErrorKind::Corrupt, format!("plot {:?}: {why}", plot.title));
    let size = |units: f64| (units as f32 * SCALE) as u32;
    let pixels = Pixmap::new(size(WIDTH), size(HEIGHT)).ok_or_else(|| refuse("no picture".to_owned()))?;
    let mut picture = Picture { pixels };
    picture.pixels.fill(Color::WHITE);
    plot.draw(&mut picture);
    picture.pixels.encode_png().map_err(|error| refuse(error.to_string()))
}

struct Picture {
    pixels: Pixmap,
}

fn paint((red, green, blue): (u8, u8, u8)) -> Paint<'static> {
    let mut paint = Paint::default();
    paint.set_color_rgba8(red, green, blue, 255);
    paint
}

impl Picture {
    /// Draws letters by calling `put` with (pixels to the right, pixels down, how much ink).
    fn letters(text: &str, is_title: bool, mut put: impl FnMut(usize, usize, u8)) {
        let (weight, height) = face(is_title);
        let width = get_raster_width(weight, height);
        for (number, letter) in text.chars().enumerate() {
            // Latin letters, and what units need; anything else is shown as a question mark.
            let raster = get_raster(letter, weight, height).or_else(|| get_raster('?', weight, height));
            let Some(raster) = raster else { continue };
            for (down, row) in raster.rows().enumerate() {
                row.iter().enumerate().for_each(|(right, ink)| put(number * width + right, down, *ink));
            }
        }
    }

    fn ink(&mut self, x: i64, y: i64, ink: u8) {
        let (width, height) = (i64::from(self.pixels.width()), i64::from(self.pixels.height()));
        if ink == 0 || !(0..width).contains(&x) || !(0..height).contains(&y) {
            return;
        }
        let pixel = &mut self.pixels.pixels_mut()[(y * width + x) as usize];
        let mix = |below: u8, above: u8| {
            ((u32::from(below) * (255 - u32::from(ink)) + u32::from(above) * u32::from(ink)) / 255) as u8
        };
        let mixed = (mix(pixel.red(), INK.0), mix(pixel.green(), INK.1), mix(pixel.blue(), INK.2));
        if let Some(mixed) = PremultipliedColorU8::from_rgba(mixed.0, mixed.1, mixed.2, 255) {
            *pixel = mixed;
        }
    }

    fn fill(&mut self, path: PathBuilder, colour: (u8, u8, u8)) {
        if let Some(path) = path.finish() {
            let scale = Transform::from_scale(SCALE, SCALE);
            self.pixels.fill_path(&path, &paint(colour), FillRule::Winding, scale, None);
        }
    }
}

fn face(is_title: bool) -> (FontWeight, RasterHeight) {
    match is_title {
        true => (FontWeight::Bold, RasterHeight::Size24),
        false => (FontWeight::Regular, RasterHeight::Size20),
    }
}

/// Pixels of a text: its width, and from its upper edge to the line that it stands on.
fn extent(text: &str, is_title: bool) -> (i64, i64) {
    let (weight, height) = face(is_title);
    let width = text.chars().count() * get_raster_width(weight, height);
    (width as i64, height.val() as i64 * 3 / 4)
}

impl Canvas for Picture {
    fn lines(&mut self, points: &[(f64, f64)], stroke: Stroke) {
        let mut path = PathBuilder::new();
        for (number, (x, y)) in points.iter().enumerate() {
            match number {
                0 => path.move_to(*x as f32, *y as f32),
                _ => path.line_to(*x as f32, *y as f32),
            }
        }
        let (colour, width, dash) = match stroke {
            Stroke::Grid => (FAINT, 1.0, None),
            Stroke::Axis => (INK, 1.0, None),
            Stroke::Series(colour) => (COLOURS[colour % COLOURS.len()], 2.0, None),
            Stroke::Guide => ((0x76, 0x79, 0x7c), 2.0, StrokeDash::new(vec![6.0, 5.0], 0.0)),
        };
        let stroke =
            tiny_skia::Stroke { width, dash, line_cap: LineCap::Butt, ..tiny_skia::Stroke::default() };
        if let Some(path) = path.finish() {
            let scale = Transform::from_scale(SCALE, SCALE);
            self.pixels.stroke_path(&path, &paint(colour), &stroke, scale, None);
        }
    }

    fn marker(&mut self, shape: usize, (x, y): (f64, f64), colour: usize) {
        let (x, y) = (x as f32, y as f32);
        let mut path = PathBuilder::new();
        match shape % 4 {
            0 => path.push_circle(x, y, 4.0),
            corners => {
                let corners: &[(f32, f32)] = match corners {
                    1 => &[(-4.0, -4.0), (4.0, -4.0), (4.0, 4.0), (-4.0, 4.0)],
                    2 => &[(0.0, -5.0), (5.0, 4.0), (-5.0, 4.0)],
                    _ => &[(0.0, -5.0), (5.0, 0.0), (0.0, 5.0), (-5.0, 0.0)],
                };
                path.move_to(x + corners[0].0, y + corners[0].1);
                corners[1..].iter().for_each(|(right, down)| path.line_to(x + right, y + down));
                path.close();
            }
        }
        self.fill(path, COLOURS[colour % COLOURS.len()]);
    }

    fn text(&mut self, (x, y): (f64, f64), anchor: Anchor, is_title: bool, text: &str) {
        let (width, rise) = extent(text, is_title);
        let left = (x as f32 * SCALE) as i64
            - match anchor {
                Anchor::Start => 0,
                Anchor::Middle => width / 2,
                Anchor::End => width,
            };
        let top = (y as f32 * SCALE) as i64 - rise;
        Picture::letters(text, is_title, |right, down, ink| {
            self.ink(left + right as i64, top + down as i64, ink);
        });
    }

    fn text_upwards(&mut self, (x, y): (f64, f64), text: &str) {
        let (width, rise) = extent(text, false);
        let (left, bottom) = ((x as f32 * SCALE) as i64 - rise, (y as f32 * SCALE) as i64 + width / 2);
        Picture::letters(text, false, |right, down, ink| {
            self.ink(left + down as i64, bottom - right as i64, ink);
        });
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use zazen_sim::report::svg::Series;

    /// A picture of the right size, with ink of the series' colour where its point is.
    #[test]
    fn a_plot_is_drawn() {
        let points = vec![(1.0, 1.0), (100.0, 50.0)];
        let series = Series { name: "µs".to_owned(), points, ..Series::default() };
        let plot = Plot { title: "Title".to_owned(), is_log: true, series: vec![series], ..Plot::default() };
        let bytes = png(&plot).unwrap();
        assert!(bytes.starts_with(b"\x89PNG\r\n"));
        let picture = Pixmap::decode_png(&bytes).unwrap();
        assert_eq!((picture.width(), picture.height()), (1440, 800));
        let is_blue =
            |pixel: &&PremultipliedColorU8| (pixel.red(), pixel.green(), pixel.blue()) == COLOURS[0];
        assert!(picture.pixels().iter().filter(is_blue).count() > 200);
        let is_ink = |pixel: &&PremultipliedColorU8| pixel.red() < 60 && pixel.blue() < 60;
        assert!(picture.pixels().iter().filter(is_ink).count() > 500, "letters and axes");
    }
}
