//! Paths in index files, as text: they are resolved without asking the file system.

use zazen_core::NameTemplate;

/// `file` as an index in the folder of `index` names it.
pub(crate) fn beside(index: &str, file: &str) -> String {
    let folder = index.rsplit_once('/').map(|(folder, _)| if folder.is_empty() { "/" } else { folder });
    match folder {
        _ if file.starts_with('/') => normal(file),
        None => normal(file),
        Some(folder) => normal(&format!("{folder}/{file}")),
    }
}

/// Without `.`, empty components, and `x/..`.
fn normal(path: &str) -> String {
    let mut parts: Vec<&str> = Vec::new();
    for part in path.split('/') {
        match part {
            "" | "." => {}
            ".." if parts.last().is_some_and(|last| *last != "..") => drop(parts.pop()),
            ".." if path.starts_with('/') => {}
            part => parts.push(part),
        }
    }
    format!("{}{}", if path.starts_with('/') { "/" } else { "" }, parts.join("/"))
}

/// Where the files of an index lie, for a frame cache.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct IndexFiles {
    /// The directory that holds the index and all its files.
    pub directory: String,
    /// By step, the files' paths beneath it.
    pub steps: Vec<Vec<String>>,
    /// The pattern that all files follow, if they follow one.
    pub template: Option<NameTemplate>,
}

/// The place of files that an index in `directory` (absolute) names, by step.
pub fn place(directory: &str, steps: &[Vec<String>]) -> IndexFiles {
    let index = format!("{}/index", directory.trim_end_matches('/'));
    let absolute: Vec<Vec<String>> =
        steps.iter().map(|files| files.iter().map(|file| beside(&index, file)).collect()).collect();
    let mut common: Vec<&str> = directory.split('/').filter(|part| !part.is_empty()).collect();
    for file in absolute.iter().flatten() {
        let folder = file.rsplit_once('/').map_or("", |(folder, _)| folder);
        let parts = folder.split('/').filter(|part| !part.is_empty());
        let same = parts.zip(&common).take_while(|(one, other)| one == *other).count();
        common.truncate(same);
    }
    let directory = format!("/{}", common.join("/"));
    let base = if common.is_empty() { 1 } else { directory.len() + 1 };
    let steps: Vec<Vec<String>> = absolute
        .iter()
        .map(|files| files.iter().map(|file| file.get(base..).unwrap_or_default().to_owned()).collect())
        .collect();
    let template = NameTemplate::of_steps(&steps);
    IndexFiles { directory, steps, template }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn paths_are_resolved_beside_the_index() {
        fn check(index: &str, file: &str, expected: &str) {
            assert_eq!(beside(index, file), expected);
        }
        check("ts.vtm", "ts/a.vti", "ts/a.vti");
        check("steps/ts_0.vtm", "./ts_0/a.vti", "steps/ts_0/a.vti");
        check("steps/ts_0.vtm", "../data//a.vti", "data/a.vti");
        check("ts.vtm", "../a.vti", "../a.vti");
        check("/x/y.vtm", "../../../a", "/a");
        check("/y.vtm", "a", "/a");
        check("ts.vtm", "/abs/../a", "/a");
    }

    #[test]
    fn a_place_holds_all_files() {
        fn check(files: &[&[&str]], directory: &str, first: &str, template: Option<&str>) {
            let steps: Vec<Vec<String>> =
                files.iter().map(|step| step.iter().map(|file| (*file).to_owned()).collect()).collect();
            let found = place("/lustre/ocean", &steps);
            assert_eq!((found.directory.as_str(), found.steps[0][0].as_str()), (directory, first));
            assert_eq!(found.template.map(|template| template.to_string()).as_deref(), template);
        }
        let ts = [&["ts_0/ts_0_0.vti", "ts_0/ts_0_1.vti"][..], &["ts_1/ts_1_0.vti", "ts_1/ts_1_1.vti"]];
        check(&ts, "/lustre/ocean", "ts_0/ts_0_0.vti", Some("ts_{t}/ts_{t}_{b}.vti"));
        check(&[&["../data/a1.vti", "../data/a2.vti"]], "/lustre", "data/a1.vti", Some("data/a{n}.vti"));
        check(&[&["/scratch/x.vti"]], "/", "scratch/x.vti", None);
    }
}
