//! Names of nodes, for people.

/// The name; `?` for a node that has not said it to the daemon that was asked.
pub(super) fn shown(name: Option<&str>) -> String {
    name.filter(|name| !name.is_empty()).unwrap_or("?").to_owned()
}
