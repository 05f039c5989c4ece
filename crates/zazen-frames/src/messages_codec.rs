//! The bytes of the messages in [`crate::messages`]: fields in the order of their declaration, rows of a list as
//! records. The golden tests hold every layout; a field is added at the end only.

use crate::messages::{
    BatchEntry, DatasetInfo, Delivery, Evict, Evicted, Fetch, Fetched, Holdings, List, ListRow, Listing,
    OpenDataset, Pin, Push, Pushed, Query, ReportBad, ScanBatch, ScanClose, ScanNext, ScanOpen, ScanOpened,
    Verified, Verify,
};
use zazen_core::limits::PATH_BYTES_MAX;
use zazen_core::{FrameNo, Result};
use zazen_wire::Message;
use zazen_wire::codec::{Reader, Writer};

/// Messages whose fields are plain integers or flags, in order.
macro_rules! plain_message {
    ($($name:ident { $($field:ident: $kind:ident),* $(,)? })*) => {$(
        impl Message for $name {
            const NAME: &'static str = stringify!($name);
            fn write(&self, writer: &mut Writer) {
                $(writer.$kind(self.$field);)*
            }
            fn read(reader: &mut Reader<'_>) -> Result<$name> {
                Ok($name { $($field: reader.$kind()?),* })
            }
        }
    )*};
}

plain_message! {
    Query { handle: u32, begin: u64, end: u64, stride: u64 }
    ScanOpened { scan: u32, cached: u64 }
    ScanNext { scan: u32, frames_max: u16, bytes_max: u64 }
    ScanClose { scan: u32 }
    ReportBad { handle: u32, number: u64 }
    Evicted { frames: u64, bytes: u64 }
    Pin { handle: u32, pinned: bool }
    Verify { handle: u32, from: u64, frames_max: u32 }
    List { handle: u32, from: u64, rows_max: u32 }
}

impl Message for OpenDataset {
    const NAME: &'static str = "OpenDataset";

    fn write(&self, writer: &mut Writer) {
        writer.text(&self.path);
        writer.bool(self.want_extent);
        writer.option(&self.pattern, |writer, pattern| writer.text(pattern));
        writer.bool(self.only_cached);
    }

    fn read(reader: &mut Reader<'_>) -> Result<OpenDataset> {
        Ok(OpenDataset {
            path: reader.absolute_path()?,
            want_extent: reader.bool()?,
            pattern: reader.option(|reader| reader.text(PATH_BYTES_MAX))?,
            only_cached: reader.bool()?,
        })
    }
}

impl Message for DatasetInfo {
    const NAME: &'static str = "DatasetInfo";

    fn write(&self, writer: &mut Writer) {
        writer.u32(self.handle);
        writer.rel_path(&self.dataset);
        writer.option(&self.layout, Writer::layout);
        writer.option(&self.extent, Writer::runset);
        writer.bool(self.backing_ok);
        writer.list(&self.series, |writer, series| writer.text(series));
    }

    fn read(reader: &mut Reader<'_>) -> Result<DatasetInfo> {
        Ok(DatasetInfo {
            handle: reader.u32()?,
            dataset: reader.stored_path()?,
            layout: reader.option(Reader::layout)?,
            extent: reader.option(Reader::runset)?,
            backing_ok: reader.bool()?,
            series: reader.list(4, |reader| reader.text(PATH_BYTES_MAX))?,
        })
    }
}

impl Message for Holdings {
    const NAME: &'static str = "Holdings";

    fn write(&self, writer: &mut Writer) {
        writer.runset(&self.native);
        writer.runset(&self.alien);
    }

    fn read(reader: &mut Reader<'_>) -> Result<Holdings> {
        Ok(Holdings { native: reader.runset()?, alien: reader.runset()? })
    }
}

impl Message for ScanOpen {
    const NAME: &'static str = "ScanOpen";

    fn write(&self, writer: &mut Writer) {
        writer.u32(self.handle);
        writer.runset(&self.set);
    }

    fn read(reader: &mut Reader<'_>) -> Result<ScanOpen> {
        Ok(ScanOpen { handle: reader.u32()?, set: reader.runset()? })
    }
}

fn write_delivery(writer: &mut Writer, delivery: Delivery) {
    writer.u8(match delivery {
        Delivery::Native => 0,
        Delivery::Alien => 1,
        Delivery::Fetched => 2,
        Delivery::ReadThrough => 3,
        Delivery::Inline => 4,
        Delivery::Failed => 5,
    });
}

fn read_delivery(reader: &mut Reader<'_>) -> Result<Delivery> {
    Ok(match reader.u8()? {
        0 => Delivery::Native,
        1 => Delivery::Alien,
        2 => Delivery::Fetched,
        3 => Delivery::ReadThrough,
        4 => Delivery::Inline,
        5 => Delivery::Failed,
        other => return Err(reader.malformed(format_args!("unknown delivery {other}"))),
    })
}

/// A batch entry on the wire without its options' values and its path's bytes.
const ENTRY_BYTES_MIN: usize = 4 + 8 + 1 + 1 + 8 + 8 + 1 + 4 + 1 + 1;

impl Message for BatchEntry {
    const NAME: &'static str = "BatchEntry";

    fn write(&self, writer: &mut Writer) {
        writer.u64(self.number);
        write_delivery(writer, self.delivery);
        writer.option(&self.fd, |writer, fd| writer.u16(*fd));
        writer.u64(self.offset);
        writer.u64(self.length);
        writer.option(&self.checksum, |writer, checksum| writer.u64(*checksum));
        writer.text(&self.path);
        writer.option(&self.error, |writer, (kind, message)| {
            writer.u32(*kind);
            writer.clipped_text(message);
        });
        writer.bool(self.whole);
    }

    fn read(reader: &mut Reader<'_>) -> Result<BatchEntry> {
        Ok(BatchEntry {
            number: FrameNo::new(reader.u64()?)?.get(),
            delivery: read_delivery(reader)?,
            fd: reader.option(Reader::u16)?,
            offset: reader.u64()?,
            length: reader.u64()?,
            checksum: reader.option(Reader::u64)?,
            path: reader.absolute_path()?,
            error: reader.option(|reader| Ok((reader.u32()?, reader.free_text()?)))?,
            whole: reader.bool()?,
        })
    }
}

impl Message for ScanBatch {
    const NAME: &'static str = "ScanBatch";

    fn write(&self, writer: &mut Writer) {
        writer.list(&self.entries, |writer, entry| writer.record(|writer| entry.write(writer)));
    }

    fn read(reader: &mut Reader<'_>) -> Result<ScanBatch> {
        let entries =
            reader.list(ENTRY_BYTES_MIN, |reader| reader.record(BatchEntry::NAME, BatchEntry::read))?;
        Ok(ScanBatch { entries })
    }
}

impl Message for Push {
    const NAME: &'static str = "Push";

    fn write(&self, writer: &mut Writer) {
        writer.text(&self.dataset);
        writer.source(&self.source);
        writer.frame_meta(&self.meta);
        writer.series(&self.series);
    }

    fn read(reader: &mut Reader<'_>) -> Result<Push> {
        Ok(Push {
            dataset: reader.absolute_path()?,
            source: reader.source()?,
            meta: reader.frame_meta()?,
            series: reader.series()?,
        })
    }
}

impl Message for Pushed {
    const NAME: &'static str = "Pushed";

    fn write(&self, writer: &mut Writer) {
        writer.u8(match self {
            Pushed::Stored => 0,
            Pushed::AlreadyHere => 1,
        });
    }

    fn read(reader: &mut Reader<'_>) -> Result<Pushed> {
        match reader.u8()? {
            0 => Ok(Pushed::Stored),
            1 => Ok(Pushed::AlreadyHere),
            other => Err(reader.malformed(format_args!("unknown fate {other}"))),
        }
    }
}

impl Message for Fetch {
    const NAME: &'static str = "Fetch";

    fn write(&self, writer: &mut Writer) {
        writer.u32(self.handle);
        writer.runset(&self.set);
        writer.origin(self.origin);
    }

    fn read(reader: &mut Reader<'_>) -> Result<Fetch> {
        Ok(Fetch { handle: reader.u32()?, set: reader.runset()?, origin: reader.origin()? })
    }
}

impl Message for Fetched {
    const NAME: &'static str = "Fetched";

    fn write(&self, writer: &mut Writer) {
        writer.u64(self.fetched);
        writer.u64(self.present);
        writer.u64(self.bytes);
        writer.list(&self.failed, |writer, (number, kind, message)| {
            writer.record(|writer| {
                writer.u64(*number);
                writer.u32(*kind);
                writer.clipped_text(message);
            });
        });
    }

    fn read(reader: &mut Reader<'_>) -> Result<Fetched> {
        Ok(Fetched {
            fetched: reader.u64()?,
            present: reader.u64()?,
            bytes: reader.u64()?,
            failed: reader.list(4 + 8 + 4 + 4, |reader| {
                reader.record("failure", |reader| Ok((reader.u64()?, reader.u32()?, reader.free_text()?)))
            })?,
        })
    }
}

impl Message for Evict {
    const NAME: &'static str = "Evict";

    fn write(&self, writer: &mut Writer) {
        writer.u32(self.handle);
        writer.option(&self.set, Writer::runset);
    }

    fn read(reader: &mut Reader<'_>) -> Result<Evict> {
        Ok(Evict { handle: reader.u32()?, set: reader.option(Reader::runset)? })
    }
}

impl Message for Verified {
    const NAME: &'static str = "Verified";

    fn write(&self, writer: &mut Writer) {
        writer.u64(self.checked);
        writer.u64(self.bytes);
        writer.list(&self.bad, |writer, number| writer.u64(*number));
        writer.option(&self.next, |writer, number| writer.u64(*number));
    }

    fn read(reader: &mut Reader<'_>) -> Result<Verified> {
        Ok(Verified {
            checked: reader.u64()?,
            bytes: reader.u64()?,
            bad: reader.list(8, Reader::u64)?,
            next: reader.option(Reader::u64)?,
        })
    }
}

/// A row on the wire: three record lengths, a source and a meta without options' values, origin, path length.
const ROW_BYTES_MIN: usize = 4 + (4 + 37) + 1 + (4 + 13) + 4;

impl Message for ListRow {
    const NAME: &'static str = "ListRow";

    fn write(&self, writer: &mut Writer) {
        writer.frame_meta(&self.meta);
        writer.origin(self.origin);
        writer.source(&self.source);
        writer.text(&self.path);
    }

    fn read(reader: &mut Reader<'_>) -> Result<ListRow> {
        Ok(ListRow {
            meta: reader.frame_meta()?,
            origin: reader.origin()?,
            source: reader.source()?,
            path: reader.absolute_path()?,
        })
    }
}

impl Message for Listing {
    const NAME: &'static str = "Listing";

    fn write(&self, writer: &mut Writer) {
        writer.list(&self.rows, |writer, row| writer.record(|writer| row.write(writer)));
        writer.option(&self.next, |writer, number| writer.u64(*number));
    }

    fn read(reader: &mut Reader<'_>) -> Result<Listing> {
        Ok(Listing {
            rows: reader.list(ROW_BYTES_MIN, |reader| reader.record(ListRow::NAME, ListRow::read))?,
            next: reader.option(Reader::u64)?,
        })
    }
}
