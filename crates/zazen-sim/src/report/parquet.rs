//! Tables as Parquet files: one row group, plain values, no compression, no missing values. Written
//! here, because what the tables need is small, and the library for it builds 20 crates more
//! (docs/decisions/0001-dependencies.md). A test reads the files with Arrow's own reader.

/// The values of a column.
#[derive(Clone, Debug, PartialEq)]
pub enum Column {
    /// Texts.
    Text(Vec<String>),
    /// Whole numbers.
    Whole(Vec<u64>),
    /// Numbers.
    Real(Vec<f64>),
}

const MAGIC: &[u8] = b"PAR1";
/// Parquet's numbers of physical types.
const INT64: i64 = 2;
const DOUBLE: i64 = 5;
const BYTE_ARRAY: i64 = 6;
/// Thrift's compact types.
const I32: u8 = 5;
const I64: u8 = 6;
const BINARY: u8 = 8;
const LIST: u8 = 9;
const STRUCT: u8 = 12;

/// Thrift's compact protocol, as much of it as a footer needs.
#[derive(Default)]
struct Thrift {
    bytes: Vec<u8>,
    /// The last field of each struct that is open.
    fields: Vec<i16>,
}

impl Thrift {
    fn varint(&mut self, mut value: u64) {
        while value >= 0x80 {
            self.bytes.push(value as u8 | 0x80);
            value >>= 7;
        }
        self.bytes.push(value as u8);
    }

    fn zigzag(&mut self, value: i64) {
        self.varint((value << 1 ^ value >> 63) as u64);
    }

    fn field(&mut self, number: i16, kind: u8) {
        if let Some(last) = self.fields.last_mut() {
            // Fields come in ascending order, and none is more than 15 after the last.
            self.bytes.push(((number - *last) as u8) << 4 | kind);
            *last = number;
        }
    }

    fn open(&mut self) {
        self.fields.push(0);
    }

    fn close(&mut self) {
        self.bytes.push(0);
        self.fields.pop();
    }

    fn i32(&mut self, number: i16, value: i64) {
        self.field(number, I32);
        self.zigzag(value);
    }

    fn i64(&mut self, number: i16, value: i64) {
        self.field(number, I64);
        self.zigzag(value);
    }

    fn text(&mut self, number: i16, text: &str) {
        self.field(number, BINARY);
        self.raw(text);
    }

    fn raw(&mut self, text: &str) {
        self.varint(text.len() as u64);
        self.bytes.extend_from_slice(text.as_bytes());
    }

    fn list(&mut self, number: i16, kind: u8, count: usize) {
        self.field(number, LIST);
        match count {
            0..15 => self.bytes.push((count as u8) << 4 | kind),
            _ => {
                self.bytes.push(0xf0 | kind);
                self.varint(count as u64);
            }
        }
    }
}

impl Column {
    fn len(&self) -> usize {
        match self {
            Column::Text(values) => values.len(),
            Column::Whole(values) => values.len(),
            Column::Real(values) => values.len(),
        }
    }

    fn physical(&self) -> i64 {
        match self {
            Column::Text(_) => BYTE_ARRAY,
            Column::Whole(_) => INT64,
            Column::Real(_) => DOUBLE,
        }
    }

    /// The values one after the other, little endian; texts with their lengths.
    fn plain(&self) -> Vec<u8> {
        let mut bytes = Vec::new();
        let mut word = |word: u64, count: u32| (0..count).for_each(|at| bytes.push((word >> (8 * at)) as u8));
        match self {
            Column::Text(values) => {
                for value in values {
                    word(value.len() as u64, 4);
                    value.bytes().for_each(|byte| word(u64::from(byte), 1));
                }
            }
            Column::Whole(values) => values.iter().for_each(|value| word(*value, 8)),
            Column::Real(values) => values.iter().for_each(|value| word(value.to_bits(), 8)),
        }
        bytes
    }
}

/// The header of a page with all values of a column.
fn page_header(bytes: usize, rows: usize) -> Vec<u8> {
    let mut thrift = Thrift::default();
    thrift.open();
    thrift.i32(1, 0); // a data page
    thrift.i32(2, bytes as i64);
    thrift.i32(3, bytes as i64);
    thrift.field(5, STRUCT);
    thrift.open();
    thrift.i32(1, rows as i64);
    thrift.i32(2, 0); // plain
    thrift.i32(3, 3); // levels run-length encoded; there are none
    thrift.i32(4, 3);
    thrift.close();
    thrift.close();
    thrift.bytes
}

/// A file with these columns, which are equally long.
pub fn file(columns: &[(&str, Column)]) -> Vec<u8> {
    let rows = columns.first().map_or(0, |(_, column)| column.len());
    debug_assert!(columns.iter().all(|(_, column)| column.len() == rows));
    let mut out = MAGIC.to_vec();
    // (offset, bytes) of each column.
    let mut chunks = Vec::new();
    for (_, column) in columns {
        let (offset, values) = (out.len(), column.plain());
        out.extend(page_header(values.len(), rows));
        out.extend(values);
        chunks.push((offset as i64, (out.len() - offset) as i64));
    }
    let footer = footer(columns, rows, &chunks);
    out.extend_from_slice(&footer);
    (0..4).for_each(|at| out.push((footer.len() >> (8 * at)) as u8));
    out.extend_from_slice(MAGIC);
    out
}

fn footer(columns: &[(&str, Column)], rows: usize, chunks: &[(i64, i64)]) -> Vec<u8> {
    let mut thrift = Thrift::default();
    thrift.open();
    thrift.i32(1, 1);
    thrift.list(2, STRUCT, columns.len() + 1);
    thrift.open();
    thrift.text(4, "table");
    thrift.i32(5, columns.len() as i64);
    thrift.close();
    for (name, column) in columns {
        thrift.open();
        thrift.i32(1, column.physical());
        thrift.i32(3, 0); // required
        thrift.text(4, name);
        match column {
            Column::Text(_) => thrift.i32(6, 0),   // UTF-8
            Column::Whole(_) => thrift.i32(6, 14), // without sign, 64 bits
            Column::Real(_) => {}
        }
        thrift.close();
    }
    thrift.i64(3, rows as i64);
    thrift.list(4, STRUCT, 1);
    thrift.open();
    thrift.list(1, STRUCT, columns.len());
    for ((name, column), (offset, bytes)) in columns.iter().zip(chunks) {
        thrift.open();
        thrift.i64(2, *offset);
        thrift.field(3, STRUCT);
        thrift.open();
        thrift.i32(1, column.physical());
        thrift.list(2, I32, 1);
        thrift.zigzag(0); // plain
        thrift.list(3, BINARY, 1);
        thrift.raw(name);
        thrift.i32(4, 0); // not compressed
        thrift.i64(5, rows as i64);
        thrift.i64(6, *bytes);
        thrift.i64(7, *bytes);
        thrift.i64(9, *offset);
        thrift.close();
        thrift.close();
    }
    thrift.i64(2, chunks.iter().map(|chunk| chunk.1).sum());
    thrift.i64(3, rows as i64);
    thrift.close();
    thrift.text(6, concat!("zazen ", env!("CARGO_PKG_VERSION")));
    thrift.close();
    thrift.bytes
}

/// A table of comma-separated values, as `csv.rs` writes it, as columns: numbers where all values
/// of a column are numbers.
pub fn from_csv(text: &str) -> Vec<(String, Column)> {
    let mut rows = rows(text).into_iter();
    let names = rows.next().unwrap_or_default();
    let mut columns: Vec<(String, Vec<String>)> = names.into_iter().map(|name| (name, Vec::new())).collect();
    for row in rows {
        columns.iter_mut().zip(row).for_each(|(column, value)| column.1.push(value));
    }
    let typed = |name: &str, values: Vec<String>| {
        // A name is a text even where it looks like a number, and a digest is one.
        let is_text = matches!(
            name,
            "workload" | "cluster" | "network" | "fidelity" | "phase" | "resource" | "trace_hash"
        );
        let whole: Option<Vec<u64>> = values.iter().map(|value| value.parse().ok()).collect();
        let real: Option<Vec<f64>> = values.iter().map(|value| value.parse().ok()).collect();
        let is_time = name.ends_with("_s") || matches!(name, "efficiency" | "busy" | "of" | "disk_stretch");
        match (whole, real) {
            (Some(whole), _) if !is_text && !is_time => Column::Whole(whole),
            (_, Some(real)) if !is_text => Column::Real(real),
            _ => Column::Text(values),
        }
    };
    columns.into_iter().map(|(name, values)| (name.clone(), typed(&name, values))).collect()
}

/// The fields of each row. A name that a user chose may hold line ends, in quotes.
fn rows(text: &str) -> Vec<Vec<String>> {
    let mut rows = Vec::new();
    let (mut fields, mut field) = (Vec::new(), String::new());
    let mut is_quoted = false;
    let mut letters = text.chars().peekable();
    while let Some(letter) = letters.next() {
        match letter {
            '"' if is_quoted && letters.peek() == Some(&'"') => {
                letters.next();
                field.push('"');
            }
            '"' => is_quoted = !is_quoted,
            ',' if !is_quoted => fields.push(std::mem::take(&mut field)),
            '\n' if !is_quoted => {
                fields.push(std::mem::take(&mut field));
                rows.push(std::mem::take(&mut fields));
            }
            letter => field.push(letter),
        }
    }
    rows
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn columns_have_the_types_of_their_values() {
        let columns = from_csv("workload,nodes,makespan_s\n\"a,\"\"b\"\"\n\",512,3\n7,1024,4.5\n");
        let texts = ["a,\"b\"\n", "7"].map(str::to_owned).to_vec();
        let expected = [
            ("workload", Column::Text(texts)),
            ("nodes", Column::Whole(vec![512, 1024])),
            ("makespan_s", Column::Real(vec![3.0, 4.5])),
        ];
        assert_eq!(columns, expected.map(|(name, column)| (name.to_owned(), column)));
    }

    /// The frame of the file, and the values where they must be. tests/sim reads files with Arrow.
    #[test]
    fn a_file_begins_and_ends_as_it_must() {
        let file =
            file(&[("n", Column::Whole(vec![1, u64::from(u32::MAX)])), ("x", Column::Real(vec![0.5; 2]))]);
        assert!(file.starts_with(MAGIC) && file.ends_with(MAGIC));
        let length =
            file[file.len() - 8..file.len() - 4].iter().rev().fold(0, |sum, byte| sum << 8 | *byte as usize);
        assert!(length + 12 < file.len());
        let value = 1_u64 << 32 | 1;
        assert!(
            file.windows(8)
                .any(|bytes| bytes.iter().rev().fold(0, |sum, byte| sum << 8 | u64::from(*byte))
                    == value >> 32)
        );
        let mut thrift = Thrift::default();
        [0, -1, 1, 300].into_iter().for_each(|value| thrift.zigzag(value));
        assert_eq!(thrift.bytes, [0, 1, 2, 0xd8, 4]);
    }
}
