//! Plug-ins as the daemon's flags and file name them.

use serde::de::value::MapAccessDeserializer;
use serde::de::{MapAccess, Visitor};
use serde::{Deserialize, Deserializer};
use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::time::Duration;
use zazen_core::{Error, ErrorKind, Result, byte_size};
use zazen_plugins::PluginConfig;

/// A plug-in's process gives a sign of life each second, so a shorter silence means nothing.
const SILENCE_SECONDS_MIN: u64 = 3;
/// Processes of a plug-in that acts as its callers, at most.
const IDENTITIES_MAX: usize = 4096;
/// What `--plugin FILE` may end in, for the daemon's own process.
const IN_PROCESS: &str = ":in-process";
/// The file of the plug-in that acts on files for forwarded programs.
const POSIX_FILE: &str = "libzazen_posix.so";
/// The program of isolated plug-ins' processes: this one, even if its file has been replaced since.
pub const SELF: &str = "/proc/self/exe";

/// One plug-in of the TOML file: a table `[[plugin]]`, or what `--plugin` takes.
#[derive(Clone, Debug)]
pub enum PluginEntry {
    /// As the flag has it.
    Flag(String),
    /// With settings.
    Table(Box<PluginTable>),
}

impl<'de> Deserialize<'de> for PluginEntry {
    fn deserialize<D: Deserializer<'de>>(given: D) -> std::result::Result<PluginEntry, D::Error> {
        struct Either;
        impl<'de> Visitor<'de> for Either {
            type Value = PluginEntry;

            fn expecting(&self, words: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
                words.write_str("a plug-in as --plugin takes it, or a table with its path")
            }

            fn visit_str<E>(self, flag: &str) -> std::result::Result<PluginEntry, E> {
                Ok(PluginEntry::Flag(flag.to_owned()))
            }

            fn visit_map<M: MapAccess<'de>>(self, map: M) -> std::result::Result<PluginEntry, M::Error> {
                let table = PluginTable::deserialize(MapAccessDeserializer::new(map))?;
                Ok(PluginEntry::Table(Box::new(table)))
            }
        }
        given.deserialize_any(Either)
    }
}

impl PluginEntry {
    fn config(&self) -> Result<PluginConfig> {
        match self {
            PluginEntry::Flag(flag) => of_flag(flag),
            PluginEntry::Table(table) => table.config(),
        }
    }
}

/// One `[[plugin]]` of the TOML file.
#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct PluginTable {
    path: PathBuf,
    isolate: Option<bool>,
    call_timeout_seconds: Option<f64>,
    silence_seconds: Option<u64>,
    memory: Option<String>,
    open_files: Option<u64>,
    processes: Option<u32>,
    identity: Option<String>,
    identities: Option<usize>,
    #[serde(default)]
    environment: BTreeMap<String, String>,
    segments: Option<String>,
}

fn refuse(path: &Path, why: impl std::fmt::Display) -> Error {
    Error::new(ErrorKind::Config, format!("plugin {}: {why}", path.display()))
}

/// The file of a plug-in: a path, or the bare name of one that comes with Zazen.
fn locate(path: &Path) -> Result<PathBuf> {
    if let Some(name) = path.to_str().filter(|name| !name.contains(['/', '.'])) {
        let library = format!("libzazen_{name}.so");
        return zazen_env::installed::find_library(&library).ok_or_else(|| {
            let folders: Vec<String> =
                zazen_env::installed::library_folders().iter().map(|at| at.display().to_string()).collect();
            let looked = folders.join(", ");
            refuse(
                path,
                format!("no {library} in {looked}; a plug-in of your own is named by its path, ./{name}"),
            )
        });
    }
    std::path::absolute(path).map_err(|error| refuse(path, "cannot be made absolute").caused_by(error))
}

impl PluginTable {
    fn config(&self) -> Result<PluginConfig> {
        let path = locate(&self.path)?;
        let size = |name: &str, text: &Option<String>| {
            let parsed = text.as_ref().map(|text| byte_size::parse(text)).transpose();
            parsed.map_err(|error| error.within(format!("plugin {}: {name}", path.display())))
        };
        let mut config = PluginConfig::new(path.clone());
        config.isolate = self.isolate.unwrap_or(true);
        config.memory_bytes = size("memory", &self.memory)?;
        config.open_files = self.open_files;
        if let Some(bytes) = size("segments", &self.segments)? {
            config.segment_bytes_max = bytes;
        }
        if let Some(seconds) = self.call_timeout_seconds {
            let timeout = Duration::try_from_secs_f64(seconds)
                .map_err(|_| refuse(&path, "call_timeout_seconds: give a number of seconds, or 0"))?;
            config.call_timeout = Some(timeout);
        }
        if let Some(seconds) = self.silence_seconds {
            if seconds < SILENCE_SECONDS_MIN {
                return Err(refuse(&path, format!("silence_seconds: give at least {SILENCE_SECONDS_MIN}")));
            }
            config.silence = Duration::from_secs(seconds);
        }
        if let Some(processes) = self.processes {
            config.process_count =
                i32::try_from(processes).map_err(|_| refuse(&path, "processes: give at most 2147483647"))?;
        }
        config.acts_as_caller = match self.identity.as_deref() {
            None => false,
            Some("caller") => true,
            Some(other) => {
                return Err(refuse(
                    &path,
                    format!("identity {other:?}: give \"caller\", or leave it out: the plug-in then says it"),
                ));
            }
        };
        if let Some(identities) = self.identities {
            if !(1..=IDENTITIES_MAX).contains(&identities) {
                return Err(refuse(&path, format!("identities: give a number from 1 to {IDENTITIES_MAX}")));
            }
            config.identities_max = identities;
        }
        if let Some(name) = self.environment.keys().find(|name| name.is_empty() || name.contains(['=', '\0']))
        {
            return Err(refuse(&path, format!("environment: {name:?} is no name of a variable")));
        }
        config.environment.clone_from(&self.environment);
        if !config.isolate && (config.acts_as_caller || !config.environment.is_empty()) {
            return Err(refuse(
                &path,
                "identity and environment are for processes of its own; drop them, or isolate = false",
            ));
        }
        if !config.isolate && (config.memory_bytes.is_some() || config.open_files.is_some()) {
            return Err(refuse(
                &path,
                "memory and open_files bound a process of its own; drop them, or isolate = false",
            ));
        }
        if config.open_files.is_some_and(|files| files < 16) {
            return Err(refuse(&path, "open_files: give at least 16"));
        }
        Ok(config)
    }
}

/// If any `--plugin` is given, the file's plug-ins do not count.
pub fn plugin_configs(flags: &[String], file: &[PluginEntry]) -> Result<Vec<PluginConfig>> {
    if flags.is_empty() {
        return file.iter().map(PluginEntry::config).collect();
    }
    flags.iter().map(|flag| of_flag(flag)).collect()
}

/// The plug-ins by which programs reach `forward`, a mount that only the plug-in posix knows: it is
/// added if it is not among them.
pub fn with_posix(mut plugins: Vec<PluginConfig>, forward: Option<&Path>) -> Result<Vec<PluginConfig>> {
    let Some(forward) = forward else { return Ok(plugins) };
    let is_posix = |plugin: &&PluginConfig| plugin.path.file_name() == Some(POSIX_FILE.as_ref());
    match plugins.iter().find(is_posix) {
        Some(plugin) if !plugin.isolate => Err(refuse(
            &plugin.path,
            format!(
                "in the daemon's own process it serves nobody the namespace as {} (namespace forward): leave \
                 :in-process out",
                forward.display()
            ),
        )),
        Some(_) => Ok(plugins),
        None => {
            plugins.push(of_flag("posix")?);
            Ok(plugins)
        }
    }
}

fn of_flag(flag: &str) -> Result<PluginConfig> {
    let (path, isolate) = match flag.strip_suffix(IN_PROCESS) {
        Some(path) => (path, false),
        None => (flag, true),
    };
    Ok(PluginConfig { isolate, ..PluginConfig::new(locate(Path::new(path))?) })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn from_toml(text: &str) -> Result<Vec<PluginConfig>> {
        #[derive(Deserialize)]
        struct File {
            plugin: Vec<PluginEntry>,
        }
        let file: File = toml::from_str(text).map_err(|error| refuse(Path::new("?"), error))?;
        plugin_configs(&[], &file.plugin)
    }

    #[test]
    fn settings_come_from_the_file_or_the_flags() {
        let text = "[[plugin]]\npath = \"/a.so\"\n[[plugin]]\npath = \"/b.so\"\nisolate = true\nmemory = \
                    \"1G\"\n\
                    open_files = 64\ncall_timeout_seconds = 0.5\nsilence_seconds = 3\nprocesses = 8\n\
                    segments = \"1M\"\n";
        let configs = from_toml(text).unwrap();
        assert_eq!(configs[0], PluginConfig::new("/a.so".into()));
        let expected = PluginConfig {
            memory_bytes: Some(1 << 30),
            open_files: Some(64),
            call_timeout: Some(Duration::from_millis(500)),
            silence: Duration::from_secs(3),
            process_count: 8,
            segment_bytes_max: 1 << 20,
            ..PluginConfig::new("/b.so".into())
        };
        assert_eq!(configs[1], expected);
        // The file takes what the flag takes, as for all settings.
        let configs = from_toml("plugin = [\"/c.so\", \"/d.so:in-process\", { path = \"/e.so\" }]").unwrap();
        assert_eq!(configs[0], PluginConfig::new("/c.so".into()));
        assert_eq!(configs[1], PluginConfig { isolate: false, ..PluginConfig::new("/d.so".into()) });
        assert_eq!(configs[2], PluginConfig::new("/e.so".into()));
        let error = from_toml("plugin = [7]").unwrap_err().to_string();
        assert!(error.contains("as --plugin takes it"), "{error}");
        let flags = ["/c.so".to_owned(), "/d.so:in-process".to_owned()];
        let configs = plugin_configs(&flags, &[]).unwrap();
        assert_eq!(configs[0], PluginConfig::new("/c.so".into()));
        assert_eq!(configs[1], PluginConfig { isolate: false, ..PluginConfig::new("/d.so".into()) });
    }

    #[test]
    fn forwarding_the_namespace_brings_the_plug_in_along() {
        let told = |flags: &[&str]| {
            plugin_configs(&flags.iter().map(|flag| (*flag).to_owned()).collect::<Vec<_>>(), &[]).unwrap()
        };
        let job = Some(Path::new("/job"));
        let other = told(&["/a.so"]);
        assert_eq!(with_posix(other.clone(), None).unwrap(), other);
        let posix = told(&["/there/libzazen_posix.so"]);
        assert_eq!(with_posix(posix.clone(), job).unwrap(), posix);
        let error = with_posix(told(&["/there/libzazen_posix.so:in-process"]), job).unwrap_err().to_string();
        assert!(error.contains("in-process") && error.contains("/job"), "{error}");
    }

    #[test]
    fn a_bare_name_is_a_plug_in_that_comes_with_zazen() {
        let error = plugin_configs(&["nosuch:in-process".to_owned()], &[]).unwrap_err().to_string();
        assert!(error.contains("no libzazen_nosuch.so in ") && error.contains("./nosuch"), "{error}");
        let here = std::env::current_exe().unwrap().with_file_name("libzazen_unittest.so");
        std::fs::write(&here, "").unwrap();
        let found = plugin_configs(&["unittest".to_owned()], &[]);
        std::fs::remove_file(&here).unwrap();
        assert_eq!(found.unwrap()[0].path, here);
    }

    #[test]
    fn bad_settings_are_named() {
        for (text, says) in [
            ("memory = \"much\"", "memory"),
            ("call_timeout_seconds = -1", "call_timeout_seconds"),
            ("silence_seconds = 2", "at least 3"),
            ("isolate = false\nopen_files = 64", "isolate"),
            ("open_files = 3", "at least 16"),
            ("isolated = true", "isolated"),
            ("identity = \"daemon\"", "identity"),
            ("identities = 0", "from 1 to"),
            ("environment = { \"a=b\" = \"c\" }", "environment"),
            ("isolate = false\nidentity = \"caller\"", "processes of its own"),
        ] {
            let error =
                from_toml(&format!("[[plugin]]\npath = \"/a.so\"\n{text}\n")).unwrap_err().to_string();
            assert!(error.contains(says), "{error}");
        }
    }
}
