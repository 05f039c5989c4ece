//! Line plots as SVG. Colours follow the reader's light or dark setting. Each line has a marker of
//! its own shape, and its name at its end, so that nothing depends on colour alone.

/// A line.
#[derive(Clone, Debug, Default)]
pub struct Series {
    /// Its name.
    pub name: String,
    /// Points, by ascending x.
    pub points: Vec<(f64, f64)>,
    /// Drawn with dashes and without markers: what would be ideal, or a limit.
    pub is_guide: bool,
    /// Drawn with markers only: measurements of others.
    pub is_reference: bool,
}

/// A plot.
#[derive(Clone, Debug, Default)]
pub struct Plot {
    /// The title.
    pub title: String,
    /// Name and unit of x.
    pub x: String,
    /// Name and unit of y.
    pub y: String,
    /// Whether both axes are logarithmic; otherwise both are linear and y begins at 0.
    pub is_log: bool,
    /// Whether x is logarithmic although y is not.
    pub is_log_x: bool,
    /// The lines.
    pub series: Vec<Series>,
}

/// Of a drawing.
pub const WIDTH: f64 = 720.0;
/// Of a drawing.
pub const HEIGHT: f64 = 400.0;
const LEFT: f64 = 78.0;
const RIGHT: f64 = 140.0;
const TOP: f64 = 44.0;
const BOTTOM: f64 = 52.0;

/// Colours and fonts, in the file itself: an SVG of its own has no page's style.
pub const STYLE: &str = "\
svg{--ink:#1b1f24;--faint:#d5dae1;--paper:#fff;\
--c0:#0b62a8;--c1:#b3450b;--c2:#1b7a3d;--c3:#7a3fa0;--c4:#8a6d00}\
@media (prefers-color-scheme:dark){svg{--ink:#e6e9ee;--faint:#3a414b;--paper:#14181d;\
--c0:#6cb6ff;--c1:#ff9f6b;--c2:#6fd08c;--c3:#d0a6f0;--c4:#e3c65b}}\
text{font:13px system-ui,sans-serif;fill:var(--ink)}.title{font-size:16px;font-weight:600}\
.grid{stroke:var(--faint);stroke-width:1}.axis{stroke:var(--ink);stroke-width:1}\
.line{fill:none;stroke-width:2}\
.guide{stroke-dasharray:6 5;stroke:var(--ink);opacity:.6}";

/// Text with the characters of markup replaced.
pub fn escape(text: &str) -> String {
    text.replace('&', "&amp;").replace('<', "&lt;").replace('>', "&gt;").replace('"', "&quot;")
}

/// A number for an axis: three digits and a unit of 1000.
pub fn short(value: f64) -> String {
    const UNITS: [(f64, &str); 6] = [(1e15, "P"), (1e12, "T"), (1e9, "G"), (1e6, "M"), (1e3, "k"), (1.0, "")];
    let digits = |value: f64| {
        let text = format!("{value:.2}");
        text.trim_end_matches('0').trim_end_matches('.').to_owned()
    };
    match UNITS.iter().find(|(unit, _)| value.abs() >= *unit) {
        Some((unit, name)) => digits(value / unit) + name,
        None if value == 0.0 => "0".to_owned(),
        None if value.abs() >= 0.01 => digits(value),
        None => format!("{value:.0e}"),
    }
}

struct Axis {
    low: f64,
    high: f64,
    is_log: bool,
    begin: f64,
    end: f64,
}

impl Axis {
    fn new(values: impl Iterator<Item = f64>, is_log: bool, from_zero: bool, begin: f64, end: f64) -> Axis {
        let valid = values.filter(|value| value.is_finite() && (!is_log || *value > 0.0));
        let (mut low, mut high) = valid
            .fold((f64::INFINITY, f64::NEG_INFINITY), |(low, high), value| (low.min(value), high.max(value)));
        if low > high {
            (low, high) = (1.0, 10.0);
        }
        if from_zero {
            low = low.min(0.0);
            high = if high > 0.0 { high * 1.05 } else { 1.0 };
        }
        if is_log {
            // A quarter of a decade of room, and at least two decades' worth of a scale to read.
            (low, high) = (low / 1.3, high * 1.3);
        } else if low == high {
            high = low + 1.0;
        }
        Axis { low, high, is_log, begin, end }
    }

    fn at(&self, value: f64) -> f64 {
        let part = match self.is_log {
            true => (value / self.low).ln() / (self.high / self.low).ln(),
            false => (value - self.low) / (self.high - self.low),
        };
        self.begin + part.clamp(0.0, 1.0) * (self.end - self.begin)
    }

    fn ticks(&self) -> Vec<f64> {
        if self.is_log {
            let decades = (self.high / self.low).log10();
            let steps: &[f64] = if decades > 3.0 { &[1.0] } else { &[1.0, 2.0, 5.0] };
            let first = self.low.log10().floor() as i32;
            let last = self.high.log10().ceil() as i32;
            let all =
                (first..=last).flat_map(|power| steps.iter().map(move |step| step * 10_f64.powi(power)));
            return all.filter(|tick| (self.low..=self.high).contains(tick)).collect();
        }
        let rough = (self.high - self.low) / 5.0;
        let power = 10_f64.powf(rough.log10().floor());
        let step = [1.0, 2.0, 5.0, 10.0].into_iter().map(|step| step * power).find(|step| *step >= rough);
        let step = step.unwrap_or(rough);
        let first = (self.low / step).ceil() as i64;
        let last = (self.high / step).floor() as i64;
        (first..=last).map(|tick| tick as f64 * step).collect()
    }
}

/// Where a text is fixed to its place.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Anchor {
    /// It begins there.
    Start,
    /// Its middle is there.
    Middle,
    /// It ends there.
    End,
}

/// How a line looks.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Stroke {
    /// Of the grid.
    Grid,
    /// Of the axes.
    Axis,
    /// Of a series, with the number of its colour.
    Series(usize),
    /// Of an ideal or a limit, with dashes.
    Guide,
}

/// What a plot is drawn on. Places are in units of a drawing of [`WIDTH`] by [`HEIGHT`], from the
/// upper left corner.
pub trait Canvas {
    /// Straight lines from point to point.
    fn lines(&mut self, points: &[(f64, f64)], stroke: Stroke);
    /// A marker, of a shape and a colour.
    fn marker(&mut self, shape: usize, at: (f64, f64), colour: usize);
    /// A text; a title is larger.
    fn text(&mut self, at: (f64, f64), anchor: Anchor, is_title: bool, text: &str);
    /// A text that goes upwards, its middle at this place.
    fn text_upwards(&mut self, at: (f64, f64), text: &str);
}

/// A name at the end of a line.
struct Label<'a> {
    /// The height of the line's end.
    at: f64,
    name: &'a str,
    /// Shape and colour.
    marker: Option<(usize, usize)>,
}

impl Plot {
    /// Draws the plot.
    pub fn draw(&self, canvas: &mut dyn Canvas) {
        let points = || self.series.iter().flat_map(|series| &series.points);
        let x = Axis::new(
            points().map(|point| point.0),
            self.is_log || self.is_log_x,
            !self.is_log && !self.is_log_x,
            LEFT,
            WIDTH - RIGHT,
        );
        let y = Axis::new(points().map(|point| point.1), self.is_log, !self.is_log, HEIGHT - BOTTOM, TOP);
        let (right, bottom) = (WIDTH - RIGHT, HEIGHT - BOTTOM);
        canvas.text((LEFT, 24.0), Anchor::Start, true, &self.title);
        for tick in x.ticks() {
            let at = x.at(tick);
            canvas.lines(&[(at, TOP), (at, bottom)], Stroke::Grid);
            canvas.text((at, bottom + 18.0), Anchor::Middle, false, &short(tick));
        }
        for tick in y.ticks() {
            let at = y.at(tick);
            canvas.lines(&[(LEFT, at), (right, at)], Stroke::Grid);
            canvas.text((LEFT - 8.0, at + 4.0), Anchor::End, false, &short(tick));
        }
        canvas.lines(&[(LEFT, TOP), (LEFT, bottom), (right, bottom)], Stroke::Axis);
        canvas.text(((LEFT + right) / 2.0, HEIGHT - 12.0), Anchor::Middle, false, &self.x);
        canvas.text_upwards((18.0, (TOP + bottom) / 2.0), &self.y);
        self.draw_series(canvas, &x, &y);
    }

    fn draw_series(&self, canvas: &mut dyn Canvas, x: &Axis, y: &Axis) {
        let mut labels: Vec<Label> = Vec::new();
        let mut colours = 0;
        for (number, series) in self.series.iter().enumerate() {
            let visible = |point: &&(f64, f64)| !self.is_log || (point.0 > 0.0 && point.1 > 0.0);
            let places: Vec<(f64, f64)> =
                series.points.iter().filter(visible).map(|point| (x.at(point.0), y.at(point.1))).collect();
            let Some(last) = places.last() else { continue };
            let colour = colours % COLOURS.len();
            if !series.is_guide {
                colours += 1;
            }
            if !series.is_reference {
                let stroke = if series.is_guide { Stroke::Guide } else { Stroke::Series(colour) };
                canvas.lines(&places, stroke);
            }
            if !series.is_guide && places.len() <= 40 {
                places.iter().for_each(|place| canvas.marker(number, *place, colour));
            }
            let marker = (!series.is_guide).then_some((number, colour));
            labels.push(Label { at: last.1, name: &series.name, marker });
        }
        // Names at the ends of the lines, moved apart where they would overlap.
        labels.sort_by(|one, other| one.at.total_cmp(&other.at));
        let mut below = 0.0_f64;
        let left = WIDTH - RIGHT + 12.0;
        // The lowest names stay within the drawing: where many crowd there, all move up.
        let room = HEIGHT - BOTTOM - 15.0 * labels.len().saturating_sub(1) as f64;
        for (number, Label { at, name, marker }) in labels.into_iter().enumerate() {
            let place = at.min(room.max(TOP) + 15.0 * number as f64).max(below + 15.0);
            below = place;
            match marker {
                Some((shape, colour)) => canvas.marker(shape, (left, place), colour),
                None => canvas.lines(&[(left - 6.0, place), (left + 6.0, place)], Stroke::Guide),
            }
            canvas.text((left + 9.0, place + 4.0), Anchor::Start, false, name);
        }
    }

    /// The plot as an SVG document.
    pub fn svg(&self) -> String {
        let title = escape(&self.title);
        let mut svg = Svg(format!(
            "<svg xmlns=\"http://www.w3.org/2000/svg\" viewBox=\"0 0 {WIDTH} {HEIGHT}\" role=\"img\">\
             <title>{title}</title><style>{STYLE}</style>\
             <rect width=\"{WIDTH}\" height=\"{HEIGHT}\" fill=\"var(--paper)\"/>"
        ));
        self.draw(&mut svg);
        svg.0 + "</svg>\n"
    }
}

/// Colours of series on white, as [`STYLE`] has them for readers of light pages.
pub const COLOURS: [(u8, u8, u8); 5] =
    [(0x0b, 0x62, 0xa8), (0xb3, 0x45, 0x0b), (0x1b, 0x7a, 0x3d), (0x7a, 0x3f, 0xa0), (0x8a, 0x6d, 0x00)];

struct Svg(String);

impl Canvas for Svg {
    fn lines(&mut self, points: &[(f64, f64)], stroke: Stroke) {
        let path: Vec<String> = points.iter().map(|(x, y)| format!("{x:.1} {y:.1}")).collect();
        let how = match stroke {
            Stroke::Grid => "class=\"grid\"".to_owned(),
            Stroke::Axis => "class=\"axis\" fill=\"none\"".to_owned(),
            Stroke::Series(colour) => format!("class=\"line\" stroke=\"var(--c{colour})\""),
            Stroke::Guide => "class=\"line guide\"".to_owned(),
        };
        self.0 += &format!("<path {how} d=\"M{}\"/>", path.join("L"));
    }

    fn marker(&mut self, shape: usize, (x, y): (f64, f64), colour: usize) {
        let fill = format!("fill=\"var(--c{colour})\"");
        self.0 += &match shape % 4 {
            0 => format!("<circle cx=\"{x:.1}\" cy=\"{y:.1}\" r=\"4\" {fill}/>"),
            1 => {
                let (x, y) = (x - 4.0, y - 4.0);
                format!("<rect x=\"{x:.1}\" y=\"{y:.1}\" width=\"8\" height=\"8\" {fill}/>")
            }
            2 => format!("<path d=\"M{x:.1} {:.1}l5 9h-10z\" {fill}/>", y - 5.0),
            _ => format!("<path d=\"M{x:.1} {:.1}l5 5l-5 5l-5-5z\" {fill}/>", y - 5.0),
        };
    }

    fn text(&mut self, (x, y): (f64, f64), anchor: Anchor, is_title: bool, text: &str) {
        let anchor = match anchor {
            Anchor::Start => "",
            Anchor::Middle => " text-anchor=\"middle\"",
            Anchor::End => " text-anchor=\"end\"",
        };
        let class = if is_title { " class=\"title\"" } else { "" };
        self.0 += &format!("<text{class} x=\"{x:.1}\" y=\"{y:.1}\"{anchor}>{}</text>", escape(text));
    }

    fn text_upwards(&mut self, (x, y): (f64, f64), text: &str) {
        self.0 += &format!(
            "<text transform=\"translate({x:.0} {y:.0}) rotate(-90)\" text-anchor=\"middle\">{}</text>",
            escape(text)
        );
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn axes_have_round_ticks() {
        let log = Axis::new([512.0, 2e6].into_iter(), true, false, 0.0, 100.0);
        assert_eq!(log.ticks(), [1e3, 1e4, 1e5, 1e6]);
        let linear = Axis::new([3.0, 97.0].into_iter(), false, true, 0.0, 100.0);
        assert_eq!(linear.ticks(), [0.0, 50.0, 100.0]);
        assert!((log.at(1024.0) - log.at(512.0) - (log.at(2048.0) - log.at(1024.0))).abs() < 1e-9);
        assert_eq!([short(0.0), short(512.0), short(2.64e12), short(0.5)], ["0", "512", "2.64T", "0.5"]);
    }

    #[test]
    fn a_plot_shows_all_points_and_escapes_names() {
        let series =
            Series { name: "a<b>".to_owned(), points: vec![(1.0, 2.0), (10.0, 20.0)], ..Series::default() };
        let plot = Plot { title: "x & y".to_owned(), is_log: true, series: vec![series], ..Plot::default() };
        let svg = plot.svg();
        // One more beside the name.
        assert_eq!(svg.matches("<circle").count(), 3);
        assert!(svg.contains("x &amp; y") && svg.contains("a&lt;b&gt;") && svg.ends_with("</svg>\n"));
        Plot::default().svg();
    }
}
