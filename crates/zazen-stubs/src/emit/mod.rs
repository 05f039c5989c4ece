//! Writes the files of an interface. Each kind of file has a module here.

mod client;
mod code;
mod count;
mod dispatch;
mod echo;
mod fuzz;
mod man;
mod python;
mod roundtrip;
mod rust;
mod schema;
mod wire;

use crate::model::Interface;

pub use code::File;
pub(crate) use schema::schema_hash;

/// All files of an interface, in the order of their names.
pub(crate) fn files(interface: &Interface, schema_hash: u64) -> Vec<File> {
    let name = &interface.name;
    let schema = schema::json(interface, schema_hash);
    let mut files = vec![
        File { name: format!("{name}.md"), text: man::text(interface) },
        File { name: format!("{name}.py"), text: python::text(interface) },
        File { name: format!("{name}.rs"), text: rust::text(interface) },
        File { name: format!("{name}_client.c"), text: client::text(interface) },
        File { name: format!("{name}_dispatch.c"), text: dispatch::text(interface, &schema) },
        File { name: format!("{name}_echo.h"), text: echo::text(interface) },
        File { name: format!("{name}_fuzz.c"), text: fuzz::text(interface) },
        File { name: format!("{name}_roundtrip.c"), text: roundtrip::text(interface) },
        File { name: format!("{name}_schema.json"), text: schema },
        File { name: format!("{name}_wire.h"), text: wire::text(interface, schema_hash) },
    ];
    files.sort_by(|left, right| left.name.cmp(&right.name));
    files
}
