#!/bin/sh
# Fetches HDFS (91 MB, from Maven Central) into target/hadoop, for integrations/viz/tests/test_hdfs.py.
#
# Needs Java and Maven (Debian: default-jre-headless maven). JAXB and a logger are missing in Hadoop's own client jars:
# without the first, WebHDFS answers 500; without the second, the name node ends without a word.
set -eu
cd "$(dirname "$0")/.."
folder=${1:-target/hadoop}
for program in java mvn; do
    command -v "$program" > /dev/null || { echo "no $program (Debian: default-jre-headless maven)" >&2; exit 1; }
done
mkdir -p "$folder"
dependency() { echo "<dependency><groupId>$1</groupId><artifactId>$2</artifactId><version>$3</version></dependency>"; }
{
    echo '<project xmlns="http://maven.apache.org/POM/4.0.0"><modelVersion>4.0.0</modelVersion>'
    echo '<groupId>local</groupId><artifactId>hdfs</artifactId><version>1</version><dependencies>'
    for part in api runtime minicluster; do dependency org.apache.hadoop "hadoop-client-$part" 3.4.1; done
    dependency javax.xml.bind jaxb-api 2.3.1
    dependency com.sun.xml.bind jaxb-impl 2.3.9
    dependency org.slf4j slf4j-reload4j 1.7.36
    echo '</dependencies></project>'
} > "$folder/pom.xml"
mvn -q -B -f "$folder/pom.xml" dependency:copy-dependencies -DoutputDirectory=lib
ls "$folder/lib" | grep -q hadoop-client-minicluster
echo "HDFS is in $folder/lib"
