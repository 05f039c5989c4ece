//! A rank's files in a cell of a table.

/// Files shown of a rank's share before the rest is counted.
const FILES_SHOWN: usize = 8;

pub(super) fn files_text(files: &[u32]) -> String {
    let mut shown: Vec<String> = files.iter().take(FILES_SHOWN).map(u32::to_string).collect();
    match files.len() {
        0 => "-".to_owned(),
        all if all > FILES_SHOWN => {
            shown.push(format!("… {} more", all - FILES_SHOWN));
            shown.join(" ")
        }
        _ => shown.join(" "),
    }
}
