//! The page of `zazen viz report`: each read call of each run, on one scale.
//!
//! One plot for each run: time steps across, seconds of each call up (logarithmic), the mean and
//! the 99th percentile as lines, the deviation around the mean as a band, outliers marked.

use super::record::{Reads, Run, Step};
use crate::output::human_bytes;
use std::fmt::Write as _;

/// Width and height of a plot's area, and what lies around it for ticks and words.
const SIZE: (f64, f64) = (640.0, 220.0);
const LEFT: f64 = 64.0;
const RIGHT: f64 = 60.0;
const ABOVE: f64 = 8.0;
const BELOW: f64 = 40.0;
/// Calls that took less count as so many seconds: the axis is logarithmic.
const SECONDS_MIN: f64 = 1e-6;
/// Steps across that have a tick.
const TICKS_ACROSS: usize = 5;
const STYLE: &str = "body{font-family:sans-serif;max-width:62em;margin:2em auto;padding:0 1em;color:#222}\
    table{border-collapse:collapse;font-size:.85em}td,th{padding:.2em .6em;white-space:nowrap}\
    td,th{text-align:right;border-bottom:1px solid #ddd}\
    td:first-child,th:first-child{text-align:left}svg text{font-size:12px;fill:#444}svg{max-width:100%}";

/// Places in the plots.
struct Scale {
    first: f64,
    last: f64,
    /// Logarithms of the fastest and the slowest call, with some room beside them.
    low: f64,
    high: f64,
}

impl Scale {
    fn of(runs: &[Run]) -> Scale {
        let all = || runs.iter().flat_map(|run| run.calls.iter());
        let bounds = |values: &mut dyn Iterator<Item = f64>| {
            values.fold((f64::MAX, f64::MIN), |(low, high), value| (low.min(value), high.max(value)))
        };
        let (first, last) = bounds(&mut all().map(|(time, _)| *time));
        let (low, high) = bounds(&mut all().map(|(_, seconds)| seconds.max(SECONDS_MIN).ln()));
        Scale { first, last, low: low - 0.1, high: high + 0.1 }
    }

    fn x(&self, time: f64) -> f64 {
        let span = self.last - self.first;
        // A single step lies in the middle. Dots at the ends are not cut.
        let share = if span > 0.0 { (time - self.first) / span } else { 0.5 };
        LEFT + 6.0 + (SIZE.0 - 12.0) * share
    }

    fn y(&self, seconds: f64) -> f64 {
        let share = (seconds.max(SECONDS_MIN).ln() - self.low) / (self.high - self.low);
        ABOVE + SIZE.1 * (1.0 - share.clamp(0.0, 1.0))
    }

    /// Round seconds: powers of ten, and their double and fivefold where there are few of them.
    fn ticks_up(&self) -> Vec<f64> {
        let decades = (self.low / std::f64::consts::LN_10).floor() as i32
            ..=(self.high / std::f64::consts::LN_10).ceil() as i32;
        let steps: &[f64] =
            if (self.high - self.low) < 2.5 * std::f64::consts::LN_10 { &[1.0, 2.0, 5.0] } else { &[1.0] };
        let every = decades.flat_map(|power| steps.iter().map(move |step| step * 10f64.powi(power)));
        every.filter(|seconds| (self.low..=self.high).contains(&seconds.ln())).collect()
    }

    /// Times of steps, at about equal distances.
    fn ticks_across(&self, run: &Run) -> Vec<f64> {
        let mut times: Vec<f64> = run.calls.iter().map(|(time, _)| *time).collect();
        times.sort_by(f64::total_cmp);
        times.dedup();
        let last = times.len().saturating_sub(1);
        let mut at: Vec<usize> = (0..TICKS_ACROSS).map(|tick| tick * last / (TICKS_ACROSS - 1)).collect();
        at.dedup();
        at.into_iter().filter_map(|at| times.get(at).copied()).collect()
    }
}

pub(super) fn html(runs: &[Run]) -> String {
    let scale = Scale::of(runs);
    let mut page = format!(
        "<!doctype html><html lang=\"en\"><meta charset=\"utf-8\"><title>Read calls</title>\n\
         <style>{STYLE}</style>\n<h1>Read calls</h1>\n"
    );
    comparison(&mut page, runs);
    page.push_str(
        "<p>Each dot is one read call of one rank: the step's time across, its seconds up (logarithmic, one \
         scale for all runs). The line is the mean, the band one deviation around it, the dashed line the \
         99th percentile. Red dots are outliers: beyond the mean and 3 deviations.</p>\n",
    );
    for run in runs {
        plot(&mut page, run, &scale);
    }
    page.push_str("</html>\n");
    page
}

/// A row for each run, which is what one compares.
fn comparison(page: &mut String, runs: &[Run]) {
    page.push_str(
        "<table><tr><th>run<th>strategy<th>calls<th>mean s<th>deviation<th>p99<th>most<th>outliers\
         <th>steps within 10 s<th>local<th>remote<th>from the store</tr>\n",
    );
    for run in runs {
        let Reads { count, mean_s, deviation_s, p99_s, max_s, outliers, .. } = run.reads;
        let _ = write!(
            page,
            "<tr><td>{}<td>{}<td>{count}<td>{mean_s:.4}<td>{deviation_s:.4}<td>{p99_s:.4}<td>{max_s:.4}\
             <td>{outliers}<td>{:.1} %",
            escaped(&run.folder),
            escaped(&run.strategy),
            100.0 * run.within_10_s
        );
        let of =
            [|step: &Step| step.local_bytes, |step: &Step| step.remote_bytes, |step: &Step| step.store_bytes];
        for bytes in of {
            let _ = write!(page, "<td>{}", human_bytes(run.steps.iter().map(bytes).sum()));
        }
        page.push_str("</tr>\n");
    }
    page.push_str("</table>\n");
}

fn plot(page: &mut String, run: &Run, scale: &Scale) {
    let Reads { count, mean_s, deviation_s, p99_s, outliers, limit_s, .. } = run.reads;
    let (right, bottom) = (LEFT + SIZE.0, ABOVE + SIZE.1);
    let _ = writeln!(
        page,
        "<h2>{} ({})</h2><p>{count} calls: mean {mean_s:.4} s, deviation {deviation_s:.4} s, p99 {p99_s:.4} \
         s, {outliers} outliers; {:.1} % of steps within 10 s</p>\n<svg viewBox=\"0 0 {} {}\" width=\"{}\" \
         role=\"img\"><rect x=\"{LEFT}\" y=\"{ABOVE}\" width=\"{}\" height=\"{}\" fill=\"#f4f4f4\"/>",
        escaped(&run.folder),
        escaped(&run.strategy),
        100.0 * run.within_10_s,
        right + RIGHT,
        bottom + BELOW,
        right + RIGHT,
        SIZE.0,
        SIZE.1
    );
    if count > 0 {
        let (top, under) = (scale.y(mean_s + deviation_s), scale.y(mean_s - deviation_s));
        let _ = writeln!(
            page,
            "<rect class=\"deviation\" x=\"{LEFT}\" y=\"{top:.1}\" width=\"{}\" height=\"{:.1}\" \
             fill=\"#fd9\"/>",
            SIZE.0,
            under - top
        );
        axes(page, run, scale);
        for (time, seconds) in &run.calls {
            let (size, colour) = if *seconds > limit_s { (3, "#d22") } else { (2, "#27a") };
            let (x, y) = (scale.x(*time), scale.y(*seconds));
            let _ = write!(page, "<circle cx=\"{x:.1}\" cy=\"{y:.1}\" r=\"{size}\" fill=\"{colour}\"/>");
        }
        for (seconds, dash, name) in [(mean_s, "", "mean"), (p99_s, " stroke-dasharray=\"6\"", "p99")] {
            let y = scale.y(seconds);
            let _ = write!(
                page,
                "<line x1=\"{LEFT}\" x2=\"{right}\" y1=\"{y:.1}\" y2=\"{y:.1}\" stroke=\"#b30\"{dash}/>\
                 <text x=\"{}\" y=\"{:.1}\">{name}</text>",
                right + 6.0,
                y + 4.0
            );
        }
    }
    page.push_str("</svg>\n");
}

fn axes(page: &mut String, run: &Run, scale: &Scale) {
    let bottom = ABOVE + SIZE.1;
    for seconds in scale.ticks_up() {
        let y = scale.y(seconds);
        let _ = writeln!(
            page,
            "<line x1=\"{LEFT}\" x2=\"{}\" y1=\"{y:.1}\" y2=\"{y:.1}\" stroke=\"#0002\"/>\
             <text class=\"up\" x=\"{}\" y=\"{:.1}\" text-anchor=\"end\">{}</text>",
            LEFT + SIZE.0,
            LEFT - 6.0,
            y + 4.0,
            duration(seconds)
        );
    }
    for time in scale.ticks_across(run) {
        let _ = writeln!(
            page,
            "<text class=\"across\" x=\"{:.1}\" y=\"{}\" text-anchor=\"middle\">{}</text>",
            scale.x(time),
            bottom + 16.0,
            (time * 1e6).round() / 1e6
        );
    }
    let _ = writeln!(
        page,
        "<text x=\"{}\" y=\"{}\" text-anchor=\"middle\">time of the step</text>",
        LEFT + SIZE.0 / 2.0,
        bottom + 33.0
    );
}

/// Seconds as people say them.
fn duration(seconds: f64) -> String {
    let (value, unit) = match seconds {
        small if small < 0.999e-3 => (small * 1e6, "µs"),
        small if small < 0.999 => (small * 1e3, "ms"),
        _ => (seconds, "s"),
    };
    format!("{} {unit}", value.round())
}

fn escaped(text: &str) -> String {
    text.replace('&', "&amp;").replace('<', "&lt;").replace('>', "&gt;").replace('"', "&quot;")
}

#[cfg(test)]
mod tests {
    use super::*;

    fn run(calls: &[(f64, f64)]) -> Run {
        let seconds: Vec<f64> = calls.iter().map(|(_, seconds)| *seconds).collect();
        Run {
            folder: "a<b".to_owned(),
            strategy: "optimal".to_owned(),
            ranks: 1,
            steps: Vec::new(),
            reads: super::super::record::reads(&seconds),
            within_10_s: 1.0,
            calls: calls.to_vec(),
        }
    }

    #[test]
    fn ticks_are_round_and_inside() {
        let of = |low: f64, high: f64| Scale::of(&[run(&[(0.0, low), (1.0, high)])]).ticks_up();
        let words = |ticks: Vec<f64>| ticks.into_iter().map(duration).collect::<Vec<_>>();
        assert_eq!(words(of(0.02, 0.3)), ["20 ms", "50 ms", "100 ms", "200 ms"]);
        assert_eq!(words(of(1e-6, 20.0)).first().map(String::as_str), Some("1 µs"));
        assert_eq!(words(of(1e-6, 20.0)).last().map(String::as_str), Some("10 s"));
        let times = |count: u32| {
            let calls: Vec<(f64, f64)> = (0..count).map(|step| (f64::from(step), 1.0)).collect();
            Scale::of(&[run(&calls)]).ticks_across(&run(&calls))
        };
        assert_eq!(times(98), [0.0, 24.0, 48.0, 72.0, 97.0]);
        assert_eq!(times(2), [0.0, 1.0]);
        assert_eq!(times(1), [0.0]);
    }

    #[test]
    fn nothing_lies_outside_of_a_plot() {
        let runs = [run(&[(0.0, 1e-9), (5.0, 30.0)]), run(&[(2.0, 1.0)]), run(&[])];
        let page = html(&runs);
        let numbers = |name: &str| -> Vec<f64> {
            let before = format!("{name}=\"");
            let parts = page.split(&before).skip(1);
            parts.map(|part| part.split('"').next().unwrap().parse().unwrap()).collect()
        };
        assert_eq!(numbers("cx").len(), 3);
        assert!(numbers("cx").iter().all(|x| (LEFT..=LEFT + SIZE.0).contains(x)));
        assert!(numbers("cy").iter().all(|y| (ABOVE..=ABOVE + SIZE.1).contains(y)));
        assert!(page.contains("a&lt;b") && !page.contains("NaN"));
    }
}
