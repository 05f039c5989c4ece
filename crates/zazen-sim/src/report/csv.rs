//! Tidy tables: a row for each observation, a column for each variable, units in the names.

use crate::record::RunRecord;

/// A field: quoted if it needs to be.
fn field(text: &str) -> String {
    if text.contains([',', '"', '\n', '\r']) {
        return format!("\"{}\"", text.replace('"', "\"\""));
    }
    text.to_owned()
}

fn key(record: &RunRecord) -> String {
    let names = [&record.workload, &record.cluster, &record.network].map(|name| field(name)).join(",");
    format!("{names},{},{},{},{}", record.fidelity, record.nodes, record.ranks, record.seed)
}

const KEY: &str = "workload,cluster,network,fidelity,nodes,ranks,seed";

/// A row for each run.
pub fn runs(records: &[RunRecord]) -> String {
    let mut text = format!(
        "{KEY},makespan_s,median_end_s,bytes,bytes_per_s,ideal_bytes_per_s,efficiency,metadata_ops,\
         metadata_ops_per_s,metadata_peak_per_s,messages,message_bytes,retries,unfinished,events,trace_hash\n"
    );
    for run in records {
        text.push_str(&format!(
            "{},{},{},{},{},{},{},{},{},{},{},{},{},{},{},{}\n",
            key(run),
            run.makespan_s,
            run.median_end_s,
            run.bytes,
            run.bytes_per_s,
            run.ideal_bytes_per_s,
            run.efficiency,
            run.metadata_ops,
            run.metadata_ops_per_s,
            run.metadata_peak_per_s(),
            run.messages,
            run.message_bytes,
            run.retries,
            run.unfinished,
            run.events,
            run.trace_hash
        ));
    }
    text
}

/// A row for each phase of each run.
pub fn phases(records: &[RunRecord]) -> String {
    let mut text = format!(
        "{KEY},phase,steps,bytes,first_s,last_s,per_s,bytes_per_s,mean_s,p50_s,p90_s,p99_s,p999_s,max_s\n"
    );
    for run in records {
        for phase in &run.phases {
            text.push_str(&format!(
                "{},{},{},{},{},{},{},{},{},{},{},{},{},{}\n",
                key(run),
                field(&phase.name),
                phase.steps,
                phase.bytes,
                phase.first_s,
                phase.last_s,
                phase.per_s,
                phase.bytes_per_s,
                phase.mean_s,
                phase.p50_s,
                phase.p90_s,
                phase.p99_s,
                phase.p999_s,
                phase.max_s
            ));
        }
    }
    text
}

/// A row for each of the slowest ranks of each run.
pub fn slowest(records: &[RunRecord]) -> String {
    let mut text = format!("{KEY},rank,end_s,disk_stretch\n");
    for run in records {
        for slow in &run.slowest {
            text.push_str(&format!("{},{},{},{}\n", key(run), slow.rank, slow.end_s, slow.disk_stretch));
        }
    }
    text
}

/// A row for each resource, time and run.
pub fn busy(records: &[RunRecord]) -> String {
    let mut text = format!("{KEY},resource,of,time_s,busy\n");
    for run in records {
        for resource in &run.busy {
            for (time_s, busy) in &resource.series {
                let of = resource.of;
                text.push_str(&format!("{},{},{of},{time_s},{busy}\n", key(run), field(&resource.name)));
            }
        }
    }
    text
}

#[cfg(test)]
mod tests {
    #[test]
    fn fields_are_quoted_where_needed() {
        assert_eq!(super::field("plain"), "plain");
        assert_eq!(super::field("a,\"b\""), "\"a,\"\"b\"\"\"");
    }
}
