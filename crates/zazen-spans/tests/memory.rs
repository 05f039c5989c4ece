//! Files of spans take memory in proportion to their rows and their bytes, whatever they say.
#![allow(clippy::unwrap_used, reason = "a test that panics is a test that fails")]

use std::alloc::{GlobalAlloc, Layout, System};
use std::cell::Cell;
use zazen_spans::{Block, HEAD_BYTES, Head, Row, Span, perfetto, read_lines};

/// Counts what each thread has allocated and not freed, and the most that ever was.
struct Counting;

thread_local! {
    static HELD: Cell<isize> = const { Cell::new(0) };
    static PEAK: Cell<isize> = const { Cell::new(0) };
}

fn count(bytes: isize) {
    let _ = HELD.try_with(|held| {
        held.set(held.get() + bytes);
        let _ = PEAK.try_with(|peak| peak.set(peak.get().max(held.get())));
    });
}

// SAFETY: every call goes to the system allocator unchanged; counting allocates nothing.
unsafe impl GlobalAlloc for Counting {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        count(layout.size() as isize);
        // SAFETY: the caller's promises are those of the system allocator.
        unsafe { System.alloc(layout) }
    }
    unsafe fn dealloc(&self, pointer: *mut u8, layout: Layout) {
        count(-(layout.size() as isize));
        // SAFETY: as above.
        unsafe { System.dealloc(pointer, layout) }
    }
}

#[global_allocator]
static ALLOCATOR: Counting = Counting;

/// The most memory that `work` held at a time, beyond what was held before.
fn peak_of<T>(work: impl FnOnce() -> T) -> (usize, T) {
    let before = HELD.get();
    PEAK.set(before);
    let made = work();
    ((PEAK.get() - before) as usize, made)
}

/// A block of 65,536 rows of which each names the longest texts: apart they would be 1 GiB.
fn hostile() -> Vec<u8> {
    let long = |letter: &str| letter.repeat(4 << 10);
    let mut block = Block::new(&long("n"));
    let caller = block.caller(1, || long("p"));
    let (op, outcome) = (block.text(&long("o")), block.text(&long("k")));
    while !block.is_full() {
        block.add(&Row {
            start_ns: 0,
            duration_ns: 1,
            queue_ns: 0,
            bytes_in: 0,
            bytes_out: 0,
            bytes_moved: 0,
            id: 0,
            caller,
            op,
            outcome,
        });
    }
    block.take(<[u8]>::to_vec)
}

fn read(bytes: &[u8]) -> Vec<Span> {
    let (head, body) = bytes.split_first_chunk::<HEAD_BYTES>().unwrap();
    let mut spans = Vec::new();
    Head::read(head).unwrap().body(body, &mut spans).unwrap();
    spans
}

#[test]
fn long_texts_are_held_once() {
    let bytes = hostile();
    let (held, spans) = peak_of(|| read(&bytes));
    assert_eq!(spans.len(), 65_536);
    let least = size_of_val(&spans[..]);
    assert!(held < 2 * least, "{held} bytes for {} spans of {least} bytes", spans.len());
    // Each event of a picture has its texts: as a whole they would be 32 MB.
    let (held, ()) = peak_of(|| perfetto(&spans[..2_000], &mut std::io::sink()).unwrap());
    assert!(held < 1 << 20, "{held} bytes for a picture");
}

#[test]
fn lines_share_their_texts() {
    let mut line = Vec::new();
    read(&hostile())[0].write_line(&mut line).unwrap();
    let text = String::from_utf8(line).unwrap().repeat(100);
    let (held, spans) = peak_of(|| read_lines("a", &text).unwrap());
    assert_eq!(spans.len(), 100);
    assert!(held < text.len() / 4, "{held} bytes for {} bytes of lines", text.len());
}
