"""NSL-KDD: network connections, normal or attack, with attacks in the test that training
never saw. That is why honest figures are near 0.77 accuracy; 0.99 is a random split of
the training file.

Tavallaee, Bagheri, Lu and Ghorbani (2009), *A Detailed Analysis of the KDD CUP 99 Data
Set*, IEEE CISDA; Canadian Institute for Cybersecurity, University of New Brunswick,
https://www.unb.ca/cic/datasets/nsl.html. Free for research with this citation. The
publisher's own address is plain http: the checksums below are what is relied on.
"""

from __future__ import annotations

from pathlib import Path

import numpy as np

from consortium.data.fetch import Progress, Source, fetch, sums
from consortium.data.read import read_table
from consortium.data.table import Table

SOURCE = Source(
    name="nslkdd",
    url="http://205.174.165.80/CICDataset/NSL-KDD/Dataset/NSL-KDD.zip",
    sha256=sums("""
        fa46b0935342616aa83b7c2578db355b6a7aaabbc492248172c7a1e8b7ab8f84  KDDTest+.txt
        7ea86479faab5ca2190b7f18b4982fb058ce5bf2b46e0e1017d0d9ef90f9c16e  KDDTrain+_20Percent.txt
    """),
    instead="consortium.data.load_bundled('breast_cancer')",
)

# Names and categories as in the publisher's ARFF header, whatever of them a file uses:
# every site has the same columns.
_NAMES = (
    "duration protocol_type service flag src_bytes dst_bytes land wrong_fragment urgent hot "
    "num_failed_logins logged_in num_compromised root_shell su_attempted num_root "
    "num_file_creations num_shells num_access_files num_outbound_cmds is_host_login "
    "is_guest_login count srv_count serror_rate srv_serror_rate rerror_rate srv_rerror_rate "
    "same_srv_rate diff_srv_rate srv_diff_host_rate dst_host_count dst_host_srv_count "
    "dst_host_same_srv_rate dst_host_diff_srv_rate dst_host_same_src_port_rate "
    "dst_host_srv_diff_host_rate dst_host_serror_rate dst_host_srv_serror_rate "
    "dst_host_rerror_rate dst_host_srv_rerror_rate"
)
COLUMNS = tuple(_NAMES.split())
_SERVICES = (
    "aol auth bgp courier csnet_ns ctf daytime discard domain domain_u echo eco_i ecr_i efs "
    "exec finger ftp ftp_data gopher harvest hostnames http http_2784 http_443 http_8001 "
    "imap4 IRC iso_tsap klogin kshell ldap link login mtp name netbios_dgm netbios_ns "
    "netbios_ssn netstat nnsp nntp ntp_u other pm_dump pop_2 pop_3 printer private red_i "
    "remote_job rje shell smtp sql_net ssh sunrpc supdup systat telnet tftp_u tim_i time "
    "urh_i urp_i uucp uucp_path vmnet whois X11 Z39_50"
)
CATEGORIES = {
    "protocol_type": ("tcp", "udp", "icmp"),
    "service": tuple(_SERVICES.split()),
    "flag": ("OTH", "REJ", "RSTO", "RSTOS0", "RSTR", "S0", "S1", "S2", "S3", "SF", "SH"),
}
# Durations, bytes and counts span up to eight orders of magnitude.
_HEAVY_TAILED = (
    *("duration", "src_bytes", "dst_bytes", "hot", "num_compromised", "num_root"),
    *("num_file_creations", "count", "srv_count"),
)


def load_intrusion(
    folder: str | Path | None = None, *, progress: Progress | None = None
) -> tuple[Table, Table]:
    """(20 % of the training file, Test+): 25,192 and 22,544 connections, 122 columns.

    The label is 1 for an attack of any kind. Durations, bytes and counts are log(1 + x);
    nothing else is scaled.
    """
    place = fetch(SOURCE, folder, progress=progress)
    return _connections(place / "KDDTrain+_20Percent.txt"), _connections(place / "KDDTest+.txt")


def _connections(path: Path) -> Table:
    table = read_table(
        path,
        label="attack",
        columns=COLUMNS,
        categories=CATEGORIES,
        positive=lambda name: name != "normal",
        header=(*COLUMNS, "attack", "difficulty"),
    )
    places = [table.columns.index(name) for name in _HEAVY_TAILED]
    features = table.features.copy()
    features[:, places] = np.log1p(features[:, places])
    return Table(features, table.labels, table.columns, table.classes)
