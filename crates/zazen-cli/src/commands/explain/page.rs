//! The explanation as one HTML page: pictures are SVG, and nothing comes from another host.

use super::text::{about, numbers};
use std::fmt::Write;
use zazen_explain::{Explanation, seconds};
use zazen_frames::scan_record::Part;

/// Width of a picture.
const WIDTH: f64 = 900.0;
/// Height of a rank's bar.
const BAR: usize = 22;
/// Ranks in the picture; of more, the slowest are shown.
const RANKS_MAX: usize = 64;

fn color(part: Part) -> &'static str {
    match part {
        Part::Assign => "#8c6bb1",
        Part::Daemon => "#fdae61",
        Part::Disk => "#4393c3",
        Part::Peer => "#66c2a5",
        Part::Backing => "#d73027",
        Part::Checksum => "#b8b8b8",
        Part::Consumer => "#1b7837",
    }
}

fn escaped(text: &str) -> String {
    let mut safe = String::with_capacity(text.len());
    for char in text.chars() {
        match char {
            '&' => safe.push_str("&amp;"),
            '<' => safe.push_str("&lt;"),
            '>' => safe.push_str("&gt;"),
            '"' => safe.push_str("&quot;"),
            '\'' => safe.push_str("&#39;"),
            char => safe.push(char),
        }
    }
    safe
}

/// The page.
pub(super) fn page(explanation: &Explanation) -> String {
    let mut page = format!(
        "<!DOCTYPE html>\n<html lang=\"en\"><head><meta charset=\"utf-8\">\n\
         <meta http-equiv=\"Content-Security-Policy\" content=\"default-src 'none'; style-src \
         'unsafe-inline'\">\n\
         <title>zazen explain {title}</title>\n<style>body{{font:16px/1.5 \
         sans-serif;max-width:60rem;margin:2rem auto;padding:0 \
         1rem;color:#222}}h1{{font-size:1.4rem}}code{{background:#f2f2f2;padding:.2em \
         .4em}}table{{border-collapse:collapse}}td,th{{text-align:left;padding:.2em .8em .2em \
         0;vertical-align:top}}td.n{{text-align:right}}</style></head><body>\n<h1>{verdict}</h1>\n",
        title = escaped(&explanation.dataset),
        verdict = escaped(&explanation.verdict),
    );
    let mut put = |text: String| page.push_str(&text);
    if !explanation.mend.is_empty() {
        put(format!("<p><code>{}</code></p>\n", escaped(&explanation.mend)));
    }
    put(format!(
        "<p>With all frames on their readers' nodes: at most {} instead of {}.</p>\n",
        seconds(explanation.all_local_ns),
        seconds(explanation.wall_ns)
    ));
    put("<h2>Where the time went</h2>\n".to_owned());
    put(ranks(explanation));
    put(legend(explanation));
    if !explanation.causes.is_empty() {
        put("<h2>Frames that were not on their reader's node</h2>\n<table><tr><th>cause<th>frames<th>cost\
             <th>node<th>frame numbers<th></tr>\n"
            .to_owned());
        for cause in &explanation.causes {
            put(format!(
                "<tr><td>{}<td class=\"n\">{}<td class=\"n\">{}<td>{}<td>{}<td>{}</tr>\n",
                cause.cause.word(),
                cause.frames,
                seconds(cause.cost_ns),
                escaped(&cause.node),
                escaped(&numbers(&cause.set)),
                escaped(&cause.detail)
            ));
        }
        put("</table>\n".to_owned());
    }
    if explanation.findings.len() > 1 {
        put("<h2>Also</h2>\n<ul>\n".to_owned());
        for finding in &explanation.findings[1..] {
            let (sentence, mend) = (escaped(&finding.sentence), escaped(&finding.mend));
            put(format!("<li>{sentence}<br><code>{mend}</code></li>\n"));
        }
        put("</ul>\n".to_owned());
    }
    for remark in &explanation.remarks {
        put(format!("<p>Note: {}.</p>\n", escaped(remark)));
    }
    page.push_str("</body></html>\n");
    page
}

/// One bar for each rank, the slowest first.
fn ranks(explanation: &Explanation) -> String {
    let mut order: Vec<usize> = (0..explanation.ranks.len()).collect();
    order.sort_by_key(|at| std::cmp::Reverse(explanation.ranks[*at].wall_ns));
    order.truncate(RANKS_MAX);
    let height = order.len() * (BAR + 6) + 10;
    let mut svg = format!(
        "<svg xmlns=\"http://www.w3.org/2000/svg\" viewBox=\"0 0 {WIDTH} {height}\" width=\"100%\" \
         role=\"img\" font-family=\"sans-serif\" font-size=\"13\">\n"
    );
    let scale = (WIDTH - 260.0) / explanation.wall_ns.max(1) as f64;
    for (line, at) in order.into_iter().enumerate() {
        let record = &explanation.ranks[at];
        let top = line * (BAR + 6) + 5;
        let middle = top + BAR / 2 + 5;
        let marks = [(explanation.slowest, " slowest"), (explanation.median, " median")];
        let mark = marks.iter().find(|(rank, _)| *rank == at && explanation.ranks.len() > 1);
        let mark = mark.map_or("", |(_, word)| *word);
        let name = escaped(&format!("rank {} {}{mark}", record.rank, record.node));
        // Writing to a String cannot fail.
        let _ = writeln!(svg, "<text x=\"0\" y=\"{middle}\">{name}</text>");
        let mut left = 170.0;
        for part in Part::ALL {
            let width = record.spent(part) as f64 * scale;
            if width > 0.0 {
                let about = format!("{}: {}", about(part), seconds(record.spent(part)));
                let _ = writeln!(
                    svg,
                    "<rect x=\"{left:.1}\" y=\"{top}\" width=\"{width:.1}\" height=\"{BAR}\" fill=\"{}\">\
                     <title>{about}</title></rect>",
                    color(part)
                );
            }
            left += width;
        }
        let _ =
            writeln!(svg, "<text x=\"{:.1}\" y=\"{middle}\">{}</text>", left + 6.0, seconds(record.wall_ns));
    }
    svg.push_str("</svg>\n");
    svg
}

fn legend(explanation: &Explanation) -> String {
    let (slow, usual) = (&explanation.ranks[explanation.slowest], &explanation.ranks[explanation.median]);
    let mut table = "<table><tr><th><th>part<th>slowest rank<th>median rank<th></tr>\n".to_owned();
    for part in Part::ALL {
        let _ = writeln!(
            table,
            "<tr><td><svg width=\"14\" height=\"14\"><rect width=\"14\" height=\"14\" fill=\"{}\"/></svg>\
             <td>{}<td class=\"n\">{}<td class=\"n\">{}<td>{}</tr>",
            color(part),
            part.word(),
            seconds(slow.spent(part)),
            seconds(usual.spent(part)),
            about(part)
        );
    }
    table.push_str("</table>\n");
    table
}

#[cfg(test)]
mod tests {
    use super::escaped;

    #[test]
    fn text_cannot_become_markup() {
        assert_eq!(escaped("<a href='x'>&\""), "&lt;a href=&#39;x&#39;&gt;&amp;&quot;");
    }
}
