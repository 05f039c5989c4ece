#[path = "../tests/common/mod.rs"]
mod common;
use common::*;
use std::os::unix::fs::FileExt;
use std::time::Instant;
use zazen_client::*;
fn plain(root: &std::path::Path, n: u64, bytes: usize, threads: u64) -> f64 {
    let t = Instant::now();
    std::thread::scope(|s| {
        for k in 0..threads {
            s.spawn(move || {
                let mut buf = vec![1u8; bytes];
                for i in (k..n).step_by(threads as usize) {
                    let f = std::fs::File::open(root.join(name(i))).unwrap();
                    let mut at = 0;
                    while at < bytes { let r = f.read_at(&mut buf[at..], at as u64).unwrap(); assert!(r > 0); at += r; }
                }
            });
        }
    });
    (n * bytes as u64) as f64 / 1e6 / t.elapsed().as_secs_f64()
}
fn plain_here(root: &std::path::Path, n: u64, bytes: usize) {
    let mut buf = vec![1u8; bytes];
    for i in 0..n {
        let f = std::fs::File::open(root.join(name(i))).unwrap();
        let mut at = 0;
        while at < bytes { let r = f.read_at(&mut buf[at..], at as u64).unwrap(); assert!(r > 0); at += r; }
    }
}
fn drop_cache(root: &std::path::Path, n: u64) {
    for i in 0..n {
        let f = std::fs::File::open(root.join(name(i))).unwrap();
        rustix::fs::fadvise(&f, 0, None, rustix::fs::Advice::DontNeed).unwrap();
    }
}
fn api(ds: &mut Dataset, n: u64, bytes: usize, opts: &ReadOptions) -> f64 {
    let t = Instant::now();
    let mut sum = 0u64;
    let mut c = 0;
    for f in ds.frames(zazen_core::RunSet::range(0, n - 1), opts).unwrap() {
        let f = f.unwrap();
        sum += f.bytes()[17] as u64; c += 1;
    }
    assert_eq!(c, n);
    std::hint::black_box(sum);
    (n * bytes as u64) as f64 / 1e6 / t.elapsed().as_secs_f64()
}
fn task_cpu(dir: &str) -> f64 {
    std::fs::read_to_string(format!("{dir}/schedstat")).ok().map_or(0.0, |s| s.split(' ').next().unwrap().parse::<f64>().unwrap() / 1e9)
}
fn cpu() -> Vec<(String, f64)> {
    let mut out = vec![];
    for t in std::fs::read_dir("/proc/self/task").unwrap() { let p = t.unwrap().path(); out.push((std::fs::read_to_string(p.join("comm")).unwrap_or_default().trim().to_owned(), task_cpu(p.to_str().unwrap()))); }
    out
}
fn me() -> f64 { task_cpu("/proc/thread-self") }
fn main() {
    if std::env::args().nth(1).is_some_and(|a| a == "crc") {
        for size in [65536usize, 262144, 431988, 2 << 20] {
            let buf = content(1, size);
            let mut best = f64::MAX;
            for _ in 0..200 { let t = Instant::now(); std::hint::black_box(zazen_wire::checksum::frame_checksum(&buf)); best = best.min(t.elapsed().as_secs_f64()); }
            println!("crc {size} {:.1} GB/s", size as f64 / 1e9 / best);
            let f = { let p = "/tmp/zt/h6bench/x"; std::fs::write(p, &buf).unwrap(); std::fs::File::open(p).unwrap() };
            let mut b = vec![0u8; size]; let mut best = f64::MAX;
            for _ in 0..200 { let t = Instant::now(); f.read_at(&mut b, 0).unwrap(); best = best.min(t.elapsed().as_secs_f64()); }
            println!("pread {size} {:.1} GB/s", size as f64 / 1e9 / best);
            for piece in [32768usize, 65536, 131072, 262144, 524288] {
                let mut best = f64::MAX;
                for _ in 0..200 { let t = Instant::now(); let mut d = zazen_wire::checksum::FrameDigest::default(); let mut at = 0; while at < size { let e = size.min(at + piece); let r = f.read_at(&mut b[at..e], at as u64).unwrap(); d.update(&b[at..at + r]); at += r; } std::hint::black_box(d.finish()); best = best.min(t.elapsed().as_secs_f64()); }
                println!("  pread+crc {size} by {piece} {:.1} GB/s", size as f64 / 1e9 / best);
            }
        }
        return;
    }
    let args: Vec<String> = std::env::args().collect();
    let cold = args.get(1).is_some_and(|a| a == "cold");
    let total: u64 = args.get(2).map_or(512 << 20, |a| a.parse::<u64>().unwrap() << 20);
    let base = std::path::PathBuf::from("/tmp/zt/h6bench");
    for bytes in [65536usize, 431_988, 2 << 20, 64 << 20] {
        let n = (total / bytes as u64).max(8);
        let root = base.join(format!("d{bytes}"));
        if !root.join(name(n - 1)).exists() { write_frames(&root, 0..n, bytes); std::process::Command::new("sync").status().unwrap(); }
        let running = Running::start(&root, Script::default());
        let mut ds = running.open();
        let mut direct = Dataset::open(&root, &OpenOptions { direct: true, ..Default::default() }).unwrap();
        api(&mut ds, n, bytes, &ReadOptions::default());
        let mut rows: Vec<(String, Vec<f64>)> = vec![];
        let reps = if cold { 5 } else { 21 };
        for rep in 0..reps {
            let mut add = |k: &str, f: &mut dyn FnMut() -> f64| {
                if cold { drop_cache(&root, n); }
                let v = f();
                match rows.iter_mut().find(|r| r.0 == k) { Some(r) => r.1.push(v), None => rows.push((k.into(), vec![v])) }
            };
            add("plain1", &mut || plain(&root, n, bytes, 1));
            if cold { add("plain4", &mut || plain(&root, n, bytes, 4)); add("plain8", &mut || plain(&root, n, bytes, 8)); }
            add("api", &mut || api(&mut ds, n, bytes, &ReadOptions::default()));
            for r in [1usize, 8] {
                add(&format!("api r{r}"), &mut || api(&mut ds, n, bytes, &ReadOptions { readers: Some(r), ..Default::default() }));
            }
            add("api nocheck", &mut || api(&mut ds, n, bytes, &ReadOptions { check: false, ..Default::default() }));
            add("direct", &mut || api(&mut direct, n, bytes, &ReadOptions::default()));
            let _ = rep;
        }
        let med = |v: &Vec<f64>| { let mut v = v.clone(); v.sort_by(|a, b| a.total_cmp(b)); (v[v.len() / 2], v[v.len() * 9 / 10], v[v.len() - 1]) };
        let (p1, p9, pm) = med(&rows[0].1);
        {
            let c = me(); for _ in 0..5 { plain_here(&root, n, bytes); } let pl = me() - c;
            for (what, ds) in [("daemon", &mut ds), ("direct", &mut direct)] {
                let (c, all) = (me(), cpu().iter().map(|x| x.1).sum::<f64>());
                let mut readers = vec![];
                for _ in 0..5 {
                    let mut r = ds.frames(zazen_core::RunSet::range(0, n - 1), &ReadOptions { readers: Some(1), ..Default::default() }).unwrap();
                    for f in r.by_ref() { std::hint::black_box(f.unwrap().bytes()[5]); }
                    readers.push(r);
                }
                let mine = me() - c; let all = cpu().iter().map(|x| x.1).sum::<f64>() - all;
                println!("{bytes:>9} cpu/frame us: plain {:.2}, {what}: consumer {:.2}, whole process {:.2}", pl / (5 * n) as f64 * 1e6, mine / (5 * n) as f64 * 1e6, all / (5 * n) as f64 * 1e6);
            }
        }
        for (k, v) in &rows { let (m, lo, hi) = med(v); println!("{bytes:>9} {k:<12} {m:8.0} MB/s [{lo:.0} {hi:.0}] of plain1: median {:.3} p90 {:.3} max {:.3}", m / p1, lo / p9, hi / pm); }
    }
}
