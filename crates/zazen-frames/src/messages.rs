//! Messages of the frames service (service 2).
//!
//! Each structure is the payload of one request or reply. The golden tests hold every layout.

use zazen_core::{
    Error, ErrorKind, FrameMeta, Layout, Origin, RelPath, Result, RunSet, Series, Source, Validator,
};
use zazen_wire::Message;
use zazen_wire::codec::{Reader, Writer};
use zazen_wire::field::{
    self, AbsolutePath, ClippedText, Field, FrameNumber, Nested, Opt, Record, ShortText, StoredPath,
};

/// Function numbers of the frames service.
pub mod frames_fn {
    /// [`super::OpenDataset`] → [`super::DatasetInfo`].
    pub const OPEN: u16 = 1;
    /// [`super::Query`] → [`super::Holdings`].
    pub const QUERY: u16 = 2;
    /// [`super::ScanOpen`] → [`super::ScanOpened`]. Local callers only.
    pub const SCAN_OPEN: u16 = 3;
    /// [`super::ScanNext`] → [`super::ScanBatch`] with descriptors. Local callers only.
    pub const SCAN_NEXT: u16 = 4;
    /// [`super::ScanClose`] → (). Local callers only.
    pub const SCAN_CLOSE: u16 = 5;
    /// [`super::Push`] + bulk bytes → [`super::Pushed`].
    pub const PUSH: u16 = 6;
    /// [`super::ReportBad`] → (): a reader met bytes that don't match their checksum; the daemon
    /// checks and drops.
    pub const REPORT_BAD: u16 = 7;
    /// [`super::Fetch`] → [`super::Fetched`]: fill from the backing store (`zazen load`).
    pub const FETCH: u16 = 8;
    /// [`super::Evict`] → [`super::Evicted`].
    pub const EVICT: u16 = 9;
    /// [`super::Pin`] → ().
    pub const PIN: u16 = 10;
    /// [`super::Verify`] → [`super::Verified`].
    pub const VERIFY: u16 = 11;
    /// [`super::List`] → [`super::Listing`].
    pub const LIST: u16 = 12;
    /// () → UTF-8 JSON: datasets with counts and bytes.
    pub const DATASETS: u16 = 13;
    /// [`super::GetBlock`] → [`super::GivenBlock`] + bulk bytes: a daemon asks another one. Remote
    /// callers only.
    pub const GET_BLOCK: u16 = 14;
    /// [`crate::scan_record::AskNotes`] → [`crate::scan_record::ScanNotes`]. Local callers only.
    pub const SCAN_NOTES: u16 = 15;
    /// [`crate::scan_record::ScanRecord`] → (): keep it for `zazen explain`. Local callers only.
    pub const KEEP_RECORD: u16 = 16;
    /// [`crate::scan_record::AskRecords`] → [`crate::scan_record::Records`].
    pub const RECORDS: u16 = 17;
    /// [`super::ReadMany`] → [`super::ScanBatch`] with descriptors and bytes. Local callers only.
    pub const READ_MANY: u16 = 18;
    /// [`super::PushMany`] + bulk bytes → [`super::PushedMany`].
    pub const PUSH_MANY: u16 = 19;
    /// [`super::CloseDataset`] → (): the handle is not used any more; the connection is.
    pub const CLOSE: u16 = 20;
    /// [`crate::scan_record::AskReadNotes`] → [`crate::scan_record::ScanNotes`]. Local callers
    /// only.
    pub const READ_NOTES: u16 = 21;
    /// [`super::Bring`] → [`super::Fetched`]: fill from another node that holds the frames.
    pub const BRING: u16 = 22;
    /// [`super::GetPiece`] → [`super::GivenPiece`] + bulk bytes: a daemon asks another one. Remote
    /// callers only.
    pub const GET_PIECE: u16 = 23;
    /// [`super::AskPlaces`] → [`super::Places`] with descriptors. Local callers only.
    pub const PLACES: u16 = 24;
    /// [`super::OpenRead`] → [`super::OpenedRead`] with descriptors and bytes. Local callers only.
    pub const OPEN_READ: u16 = 25;
}

/// Frames that one [`PushMany`] may have.
pub const PUSHES_MAX: usize = 64;

zazen_wire::messages! {
    /// Opens a dataset by the absolute path that the user types.
    #[derive(Clone, Debug, PartialEq, Eq)]
    OpenDataset {
        /// Absolute path of the dataset's directory on the backing store.
        path: String = AbsolutePath,
        /// Also list the backing directory and return which frame numbers exist.
        want_extent: bool,
        /// A template given by the user, where detection is not wanted; in
        /// [`zazen_core::NameTemplate`] notation. With `only_cached` also `pieces` or `list`.
        pattern: Option<String> = Opt<ShortText>,
        /// For tools: the backing store is not asked for a layout; [`DatasetInfo::series`] tells
        /// what the cache has.
        only_cached: bool,
    }

    /// An opened dataset. The handle is valid on this connection only.
    #[derive(Clone, Debug, PartialEq, Eq)]
    DatasetInfo {
        /// For later calls on the same connection.
        handle: u32,
        /// The cache's name for the dataset: its path beneath its backing root, and its series
        /// where that is known.
        dataset: RelPath = StoredPath,
        /// How numbers map to files, if known (from a manifest, the pattern, a listing, or an
        /// earlier push).
        layout: Option<Layout> = Opt<Layout>,
        /// The frame numbers that exist on the backing store; `None` if not asked for, or if it
        /// does not answer.
        extent: Option<RunSet> = Opt<RunSet>,
        /// False if the backing store did not answer; then what is known comes from the cache
        /// alone.
        backing_ok: bool,
        /// With [`OpenDataset::only_cached`]: the series of this directory in the cache, as
        /// patterns for opening each.
        series: Vec<String> = field::List<ShortText>,
    }

    /// Asks what the node holds of an opened dataset.
    #[derive(Clone, Debug, PartialEq, Eq)]
    Query {
        /// From [`DatasetInfo`].
        handle: u32,
        /// The first number of the range.
        begin: u64,
        /// The last number of the range.
        end: u64,
        /// Of the range, every `stride`-th number from `begin` on.
        stride: u64,
    }

    /// What a node holds, as frame numbers.
    #[derive(Clone, Debug, PartialEq, Eq)]
    Holdings {
        /// Pushed or loaded here.
        native: RunSet,
        /// Brought here by misses.
        alien: RunSet,
    }

    /// Starts a scan: the daemon hands out these frames, each once, in storage order, misses last
    /// as they arrive.
    #[derive(Clone, Debug, PartialEq, Eq)]
    ScanOpen {
        /// From [`DatasetInfo`].
        handle: u32,
        /// The frame numbers to hand out.
        set: RunSet,
    }

    /// A scan has begun. It ends with [`ScanClose`] or with its connection.
    #[derive(Clone, Copy, Debug, PartialEq, Eq)]
    ScanOpened {
        /// For later calls on the same connection.
        scan: u32,
        /// How many of the frames are in the cache now.
        cached: u64,
    }

    /// Asks for the next frames of a scan. Several connections of one process may not share a scan.
    #[derive(Clone, Copy, Debug, PartialEq, Eq)]
    ScanNext {
        /// From [`ScanOpened`].
        scan: u32,
        /// At most so many frames (the daemon also bounds it by
        /// [`zazen_core::limits::BATCH_FRAMES_MAX`], and the files that hold them by
        /// [`zazen_core::limits::FDS_PER_MESSAGE_MAX`]).
        frames_max: u16,
        /// At most so many bytes together, but at least one frame.
        bytes_max: u64,
    }

    /// One frame of a batch.
    #[derive(Clone, Debug, PartialEq, Eq)]
    BatchEntry {
        /// The frame's number.
        number: u64 = FrameNumber,
        /// How it came.
        delivery: Delivery,
        /// Index into the message's descriptors, where there is one; packed frames share it. Unless
        /// the delivery is `Failed`, the bytes of a frame without one follow in the reply's bulk
        /// part, in the order of the entries: packed frames come so to other users than root and
        /// the daemon's, and small ones to everybody who asks for a few by READ_MANY.
        fd: Option<u16> = Opt<u16>,
        /// Where the frame begins in the descriptor's file, or in the bulk part, in bytes.
        offset: u64,
        /// Its length in bytes.
        length: u64,
        /// CRC-64/NVME of its bytes, where known (always for cached frames).
        checksum: Option<u64> = Opt<u64>,
        /// Absolute path by which the bytes can be opened: in the cache if cached (empty for other
        /// users than root and the daemon's: the cache is closed to them), else on the backing
        /// store. For a piece of a larger file on the backing store it is that file.
        path: String = AbsolutePath,
        /// For [`Delivery::Failed`]: (kind code, message).
        error: Option<(u32, String)> = Opt<(u32, ClippedText)>,
        /// The file behind descriptor and path has this frame's bytes and nothing else.
        whole: bool,
    }

    /// Some frames of a scan; empty exactly when the scan has handed out everything. The answer to
    /// [`ReadMany`] is empty only if no frame was asked for.
    #[derive(Clone, Debug, PartialEq, Eq)]
    ScanBatch {
        /// The frames.
        entries: Vec<BatchEntry> = field::List<Nested<BatchEntry>>,
    }

    /// Asks for frames in one call, without a scan: random access. The answer has each of them
    /// once, in storage order, misses last, or as many as fit into one answer; the caller asks
    /// again for the others.
    #[derive(Clone, Debug, PartialEq, Eq)]
    ReadMany {
        /// From [`DatasetInfo`].
        handle: u32,
        /// The frame numbers.
        set: RunSet,
        /// At most so many bytes together, but at least one frame. The daemon also bounds the
        /// frames by [`zazen_core::limits::READ_MANY_FRAMES_MAX`], the files that hold them by
        /// [`zazen_core::limits::FDS_PER_MESSAGE_MAX`], and bytes that it sends itself by
        /// [`zazen_core::limits::READ_MANY_SENT_MAX`].
        bytes_max: u64,
    }

    /// Gives back a handle; scans of the dataset go on.
    #[derive(Clone, Copy, Debug, PartialEq, Eq)]
    CloseDataset {
        /// From [`DatasetInfo`].
        handle: u32,
    }

    /// Ends a scan.
    #[derive(Clone, Copy, Debug, PartialEq, Eq)]
    ScanClose {
        /// From [`ScanOpened`].
        scan: u32,
    }

    /// A frame on its way into a node's cache as a native; its bytes follow as the call's bulk
    /// part.
    #[derive(Clone, Debug, PartialEq, Eq)]
    Push {
        /// Absolute path of the dataset as users spell it.
        dataset: String = AbsolutePath,
        /// Where the frame lives beneath the dataset (file name), and which part of that file it
        /// is.
        source: Source,
        /// Number, length, checksum, source validator, owner and mode.
        meta: FrameMeta,
        /// The series that it belongs to.
        series: Series,
    }

    /// Several frames on their way into a node's cache, at most [`PUSHES_MAX`]. Their bytes follow
    /// as the call's bulk part, one frame behind the other. Each is taken or refused by itself.
    #[derive(Clone, Debug, PartialEq, Eq)]
    PushMany {
        /// The frames.
        pushes: Vec<Push> = field::List<Nested<Push>>,
    }

    /// What became of one frame of a [`PushMany`].
    #[derive(Clone, Debug, PartialEq, Eq)]
    PushFate {
        /// The same frame (number and checksum) was here already.
        already_here: bool,
        /// Why it was not taken: (kind code, message).
        error: Option<(u32, String)> = Opt<(u32, ClippedText)>,
    }

    /// What became of the frames of a [`PushMany`], in their order.
    #[derive(Clone, Debug, PartialEq, Eq)]
    PushedMany {
        /// One for each frame.
        fates: Vec<PushFate> = field::List<Nested<PushFate>>,
    }

    /// A reader met bytes that do not match their checksum.
    #[derive(Clone, Copy, Debug, PartialEq, Eq)]
    ReportBad {
        /// From [`DatasetInfo`].
        handle: u32,
        /// The frame.
        number: u64,
    }

    /// Fills the cache from the backing store. The reply comes when all is done; ask in chunks to
    /// show progress.
    #[derive(Clone, Debug, PartialEq, Eq)]
    Fetch {
        /// From [`DatasetInfo`].
        handle: u32,
        /// Frame numbers.
        set: RunSet,
        /// What the copies become.
        origin: Origin,
    }

    /// The result of a [`Fetch`].
    #[derive(Clone, Debug, PartialEq, Eq)]
    Fetched {
        /// Frames that are in the cache now because of this call.
        fetched: u64,
        /// Frames that were there before.
        present: u64,
        /// Bytes read from the backing store.
        bytes: u64,
        /// Frames that could not be had (at most 100 are named): number, kind code, message.
        failed: Vec<(u64, u32, String)> = field::List<Record<(u64, u32, ClippedText)>>,
    }

    /// Removes frames from the cache. Pinned datasets are refused.
    #[derive(Clone, Debug, PartialEq, Eq)]
    Evict {
        /// From [`DatasetInfo`].
        handle: u32,
        /// Which; `None`: the whole dataset.
        set: Option<RunSet> = Opt<RunSet>,
    }

    /// What an [`Evict`] removed.
    #[derive(Clone, Copy, Debug, PartialEq, Eq)]
    Evicted {
        /// Frames.
        frames: u64,
        /// Bytes.
        bytes: u64,
    }

    /// Pins a dataset (never evicted to make room) or unpins it.
    #[derive(Clone, Copy, Debug, PartialEq, Eq)]
    Pin {
        /// From [`DatasetInfo`].
        handle: u32,
        /// True to pin.
        pinned: bool,
    }

    /// Checks cached frames against their checksums, from frame number `after` on.
    #[derive(Clone, Copy, Debug, PartialEq, Eq)]
    Verify {
        /// From [`DatasetInfo`].
        handle: u32,
        /// First frame number to check.
        from: u64,
        /// Stop after so many frames.
        frames_max: u32,
    }

    /// What a [`Verify`] found.
    #[derive(Clone, Debug, PartialEq, Eq)]
    Verified {
        /// Frames checked.
        checked: u64,
        /// Bytes checked.
        bytes: u64,
        /// Frames whose bytes did not match; they have been dropped.
        bad: Vec<u64> = field::List<u64>,
        /// Where to go on; `None`: done.
        next: Option<u64> = Opt<u64>,
    }

    /// Asks for the cached frames of a dataset, one row each.
    #[derive(Clone, Copy, Debug, PartialEq, Eq)]
    List {
        /// From [`DatasetInfo`].
        handle: u32,
        /// First frame number.
        from: u64,
        /// At most so many rows (bounded by the daemon).
        rows_max: u32,
    }

    /// One cached frame.
    #[derive(Clone, Debug, PartialEq, Eq)]
    ListRow {
        /// What is known of it.
        meta: FrameMeta,
        /// How it came to this node.
        origin: Origin,
        /// Its source beneath the dataset.
        source: Source,
        /// Absolute path of the bytes in the cache (a segment file for packed frames); empty for
        /// other users than root and the daemon's.
        path: String = AbsolutePath,
    }

    /// A daemon that has opened a file for its own caller asks another node for one of the file's
    /// blocks.
    #[derive(Clone, Debug, PartialEq, Eq)]
    GetBlock {
        /// Absolute path of the dataset as users spell it.
        dataset: String = AbsolutePath,
        /// The file and the size of its blocks, as [`zazen_core::Blocks::pattern`] writes it.
        pattern: String = ShortText,
        /// Which version of the file.
        version: Validator,
        /// The block's number.
        number: u64 = FrameNumber,
    }

    /// A block, whose bytes follow in the bulk part.
    #[derive(Clone, Copy, Debug, PartialEq, Eq)]
    GivenBlock {
        /// What the file looked like when the bytes were copied.
        validator: Validator,
        /// CRC-64/NVME of the bytes.
        checksum: u64,
    }

    /// Brings frames that another node holds into this node's cache, as aliens, from that node and
    /// not from the backing store. The daemon asks only nodes that its own list of peers names.
    #[derive(Clone, Debug, PartialEq, Eq)]
    Bring {
        /// From [`DatasetInfo`].
        handle: u32,
        /// Frame numbers.
        set: RunSet,
        /// The node that holds them: `zazen_wire::control::NodeInfo::node`.
        holder: u128,
    }

    /// A daemon that has opened a frame's source for its own caller asks another node for a part of
    /// its copy.
    #[derive(Clone, Debug, PartialEq, Eq)]
    GetPiece {
        /// Absolute path of the dataset as users spell it.
        dataset: String = AbsolutePath,
        /// The pattern of the series, as [`OpenDataset::pattern`]; `None`: the dataset's own.
        pattern: Option<String> = Opt<ShortText>,
        /// The frame's number.
        number: u64 = FrameNumber,
        /// Where the part begins in the frame, in bytes.
        offset: u64,
        /// Its length in bytes, at most [`crate::home::GIVEN_BYTES_MAX`].
        length: u64,
    }

    /// A part of a copy, whose bytes follow in the bulk part.
    #[derive(Clone, Debug, PartialEq, Eq)]
    GivenPiece {
        /// What is known of the whole frame.
        meta: FrameMeta,
        /// Which part of which file the frame is.
        source: Source,
    }

    /// Asks where a cached frame and its neighbours in the cache lie, so that the caller reads them
    /// without a call for each: random access, one by one. Tells what it read so since it asked
    /// last.
    #[derive(Clone, Copy, Debug, PartialEq, Eq)]
    AskPlaces {
        /// From [`DatasetInfo`].
        handle: u32,
        /// One of the frames.
        number: u64 = FrameNumber,
        /// At most so many frames (the daemon also bounds it by
        /// [`zazen_core::limits::PLACES_MAX`], and the files that hold them by
        /// [`zazen_core::limits::FDS_PER_MESSAGE_MAX`]).
        frames_max: u32,
        /// Natives that the caller has read from such places.
        native_frames: u64,
        /// Bytes of them.
        native_bytes: u64,
        /// Aliens that it has read so.
        alien_frames: u64,
        /// Bytes of them.
        alien_bytes: u64,
    }

    /// Opens a dataset, and reads it if it is a short file that is cached: for a small file, each
    /// call costs more than its bytes.
    #[derive(Clone, Debug, PartialEq, Eq)]
    OpenRead {
        /// What to open.
        open: OpenDataset = Nested<OpenDataset>,
        /// A handle of this connection that is given back first, as by CLOSE.
        closes: Option<u32> = Opt<u32>,
        /// If the dataset is the blocks of a file, has at most so many, and all of them are cached,
        /// they are read, as by READ_MANY. 0: none.
        blocks_max: u64,
        /// As [`ReadMany::bytes_max`].
        bytes_max: u64,
    }

    /// An opened dataset, and its blocks if they were read.
    #[derive(Clone, Debug, PartialEq, Eq)]
    OpenedRead {
        /// The dataset.
        info: DatasetInfo = Nested<DatasetInfo>,
        /// The blocks; empty if they are to be asked for.
        batch: ScanBatch = Nested<ScanBatch>,
    }

    /// Where a cached frame lies that shares a file with others.
    #[derive(Clone, Debug, PartialEq, Eq)]
    PlacedFrame {
        /// What is known of it.
        meta: FrameMeta,
        /// How it came to this node.
        origin: Origin,
        /// Its source beneath the dataset.
        source: Source,
        /// Index into the message's descriptors and into [`Places::paths`].
        file: u16,
        /// Where the frame begins in that file, in bytes.
        offset: u64,
    }

    /// Places of cached frames. No frames: the daemon gives this caller none here and now; it reads
    /// on by READ_MANY.
    #[derive(Clone, Debug, PartialEq, Eq)]
    Places {
        /// Absolute path of the directory that the sources are beneath.
        directory: String = AbsolutePath,
        /// The caller compares the source with [`PlacedFrame::meta`] before it takes a copy
        /// ([`crate::ahead::still_stands`]). False where sources are taken not to change.
        compares: bool,
        /// Absolute path of each descriptor's file.
        paths: Vec<String> = field::List<AbsolutePath>,
        /// The frames.
        frames: Vec<PlacedFrame> = field::List<Nested<PlacedFrame>>,
    }

    /// Rows of a [`List`].
    #[derive(Clone, Debug, PartialEq, Eq)]
    Listing {
        /// Ascending by number.
        rows: Vec<ListRow> = field::List<Nested<ListRow>>,
        /// Where to go on; `None`: done.
        next: Option<u64> = Opt<u64>,
    }
}

/// How a frame of a batch came.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Delivery {
    /// From the cache, a native.
    Native,
    /// From the cache, an alien that was there before.
    Alien,
    /// Fetched from the backing store for this read and kept as an alien.
    Fetched,
    /// A descriptor of the source itself: the cache had no room, or is told not to keep.
    ReadThrough,
    /// Bytes follow in the reply's bulk part: the source has no descriptor to pass (served backing)
    /// and there is no room.
    Inline,
    /// This frame could not be had; `error` says why. No descriptor.
    Failed,
}

/// The result of a push that succeeded. A failed push gets an error reply.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Pushed {
    /// Stored as a native.
    Stored,
    /// The same frame (number and checksum) was here already.
    AlreadyHere,
}

impl PushFate {
    /// The fate of a frame whose push ended so.
    pub fn of(outcome: &Result<Pushed>) -> PushFate {
        match outcome {
            Ok(pushed) => PushFate { already_here: *pushed == Pushed::AlreadyHere, error: None },
            Err(error) => {
                PushFate { already_here: false, error: Some((error.kind() as u32, error.to_string())) }
            }
        }
    }

    /// How the push ended; `Protocol` for a kind of error that this release does not know.
    pub fn outcome(self) -> Result<Pushed> {
        match self.error {
            None if self.already_here => Ok(Pushed::AlreadyHere),
            None => Ok(Pushed::Stored),
            Some((code, why)) => {
                Err(Error::new(ErrorKind::from_code(code).unwrap_or(ErrorKind::Protocol), why))
            }
        }
    }
}

impl Field for Delivery {
    type Value = Delivery;
    const BYTES_MIN: usize = 1;

    fn write(delivery: &Delivery, writer: &mut Writer) {
        writer.u8(match delivery {
            Delivery::Native => 0,
            Delivery::Alien => 1,
            Delivery::Fetched => 2,
            Delivery::ReadThrough => 3,
            Delivery::Inline => 4,
            Delivery::Failed => 5,
        });
    }

    fn read(reader: &mut Reader<'_>) -> Result<Delivery> {
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
