------------------------- MODULE CatalogCompaction -------------------------
(***************************************************************************)
(* Compaction of a catalog's history, coordinated over a cluster: what    *)
(* must hold so that no version is cut away that somebody needs.          *)
(* compactlib/catalog/round.py tells the protocol in words.                *)
(*                                                                         *)
(* Times are versions here: a time stands for the version in force then.  *)
(* Elections and terms are left out on purpose: any number of rounds may  *)
(* run side by side, each by whoever believes to be the coordinator, and  *)
(* the invariants must hold all the same. Messages are left out by        *)
(* letting every step happen at any later time, again, or never.          *)
(***************************************************************************)
EXTENDS Naturals, FiniteSets, Sequences

CONSTANTS Nodes, Replicas, Partitions, RoundIds,
          PartitionOf,     \* which partition a replica is a copy of
          Since,           \* by partition, the first version that has a table in it
          NoWait,          \* planted bug: a node that joins does not wait for the clocks
          NoFence,         \* planted bug: nobody looks whether the membership has changed
          NoFlush,         \* planted bug: a time counts before it is on disk
          NoTouch          \* planted bug: a replica that was copied lowers a need, and no round hears of it

VARIABLES latest,          \* the newest version
          earliest,        \* the first version that the log still has
          clock,           \* by node, a version that its time has reached
          uses,            \* by node, the versions that its active transactions use
          lwm,             \* by node, the low watermark
          log,             \* by partition, its replicated log
          flushed,         \* by replica, how much of the log is on its disk
          published,       \* by replica, the published lowest time of transactions
          owner,           \* by replica, the node that hosts it
          members,         \* the nodes of the logical topology
          epoch,           \* counts changes of the topology
          pins,            \* counts changes of the pins' cell; the register of a copy is one
          copies,          \* by replica, the copy of another one that is under way to it
          rounds           \* by round, what it knows

vars == <<latest, earliest, clock, uses, lwm, log, flushed, published, owner, members, epoch, pins, copies, rounds>>

Max(a, b) == IF a > b THEN a ELSE b
Least(S) == CHOOSE x \in S : \A y \in S : x <= y
Greatest(S) == CHOOSE x \in S : \A y \in S : x >= y

NoRound == [epoch |-> 0, pins |-> 0, asked |-> {}, answers |-> <<>>, confirmed |-> FALSE]
NoCopy == [from |-> 0, flushed |-> 0, published |-> 0]
Answered(r) == DOMAIN rounds[r].answers
Complete(r) == rounds[r].asked # {} /\ rounds[r].asked \subseteq Answered(r)
Floors(r) == {rounds[r].answers[n].floor : n \in rounds[r].asked}
Times(r) == {rounds[r].answers[n].time : n \in rounds[r].asked}
Unchanged(r) == NoFence \/ rounds[r].epoch = epoch

Owned(n) == {r \in Replicas : owner[r] = n}
EntryTimes(p, from, upto) == {log[p][i].v : i \in {j \in (from + 1)..upto : log[p][j].k = "time"}}

InitWith(owners, first) ==
    /\ latest = first /\ earliest = 0
    /\ clock = [n \in Nodes |-> 0] /\ uses = [n \in Nodes |-> {}] /\ lwm = [n \in Nodes |-> 0]
    /\ log = [p \in Partitions |-> <<>>]
    /\ flushed = [r \in Replicas |-> 0] /\ published = [r \in Replicas |-> first]
    /\ owner = owners /\ members = {} /\ epoch = 0
    /\ pins = 0 /\ copies = [r \in Replicas |-> NoCopy]
    /\ rounds = [r \in RoundIds |-> NoRound]

------------------------------------------------------------- (* the world *)

NewVersion ==
    /\ latest' = latest + 1
    /\ UNCHANGED <<earliest, clock, uses, lwm, log, flushed, published, owner, members, epoch, pins, copies, rounds>>

\* A node is admitted. It begins nothing below a time that anybody has given out before.
Join(n) ==
    /\ n \notin members
    /\ members' = members \cup {n} /\ epoch' = epoch + 1
    /\ clock' = IF NoWait THEN clock ELSE [clock EXCEPT ![n] = Greatest({clock[m] : m \in Nodes})]
    /\ UNCHANGED <<latest, earliest, uses, lwm, log, flushed, published, owner, rounds, pins, copies>>

Crash(n) ==
    /\ n \in members
    /\ members' = members \ {n} /\ epoch' = epoch + 1
    /\ uses' = [uses EXCEPT ![n] = {}]
    /\ clock' = IF NoWait THEN [clock EXCEPT ![n] = 0] ELSE clock
    /\ UNCHANGED <<latest, earliest, lwm, log, flushed, published, owner, rounds, pins, copies>>

Begin(n, v) ==
    /\ n \in members /\ v \in clock[n]..latest
    /\ clock' = [clock EXCEPT ![n] = v] /\ uses' = [uses EXCEPT ![n] = @ \cup {v}]
    /\ UNCHANGED <<latest, earliest, lwm, log, flushed, published, owner, members, epoch, pins, copies, rounds>>

End(n, v) ==
    /\ v \in uses[n] /\ uses' = [uses EXCEPT ![n] = @ \ {v}]
    /\ UNCHANGED <<latest, earliest, clock, lwm, log, flushed, published, owner, members, epoch, pins, copies, rounds>>

Write(p, v) ==
    /\ \E n \in Nodes : v \in uses[n]
    /\ v >= Since[p]
    /\ log' = [log EXCEPT ![p] = Append(@, [k |-> "write", v |-> v])]
    /\ UNCHANGED <<latest, earliest, clock, uses, lwm, flushed, published, owner, members, epoch, pins, copies, rounds>>

\* The watermark stays behind every clock.
MoveWatermark(n, v) ==
    /\ n \in members /\ v \in lwm[n]..latest
    /\ lwm' = [lwm EXCEPT ![n] = v] /\ clock' = [m \in Nodes |-> Max(clock[m], v)]
    /\ UNCHANGED <<latest, earliest, uses, log, flushed, published, owner, members, epoch, pins, copies, rounds>>

Flush(r, upto) ==
    LET p == PartitionOf[r]
        found == EntryTimes(p, flushed[r], IF NoFlush THEN Len(log[p]) ELSE upto)
    IN /\ owner[r] \in members /\ upto \in flushed[r]..Len(log[p])
       /\ flushed' = [flushed EXCEPT ![r] = upto]
       /\ published' = [published EXCEPT ![r] = Greatest(found \cup {@})]
       /\ UNCHANGED <<latest, earliest, clock, uses, lwm, log, owner, members, epoch, pins, copies, rounds>>

\* A rebalance ends: the copy goes to another node as it is on disk.
Move(r, n) ==
    /\ n \in members /\ \A other \in Owned(n) : PartitionOf[other] # PartitionOf[r]
    /\ owner' = [owner EXCEPT ![r] = n]
    /\ UNCHANGED <<latest, earliest, clock, uses, lwm, log, flushed, published, members, epoch, pins, copies, rounds>>

\* A replica is lost, or its node is to host another copy: the source says what it has on disk now.
TakeCopy(r, from) ==
    /\ from # r /\ PartitionOf[from] = PartitionOf[r] /\ owner[from] \in members /\ copies[r] = NoCopy
    /\ copies' = [copies EXCEPT ![r] = [from |-> from, flushed |-> flushed[from], published |-> published[from]]]
    /\ UNCHANGED <<latest, earliest, clock, uses, lwm, log, flushed, published, owner, members, epoch, pins, rounds>>

\* The copy is registered: it counts in reports from now on, the pins' cell changes, and what was cut is refused.
Install(r) ==
    /\ copies[r] # NoCopy /\ owner[r] \in members /\ copies[r].published >= earliest
    /\ flushed' = [flushed EXCEPT ![r] = copies[r].flushed]
    /\ published' = [published EXCEPT ![r] = copies[r].published]
    /\ copies' = [copies EXCEPT ![r] = NoCopy]
    /\ pins' = IF NoTouch THEN pins ELSE pins + 1
    /\ UNCHANGED <<latest, earliest, clock, uses, lwm, log, owner, members, epoch, rounds>>

------------------------------------------------------------ (* the protocol *)

StartRound(r) ==
    /\ rounds[r] = NoRound /\ members # {}
    /\ rounds' = [rounds EXCEPT ![r] = [NoRound EXCEPT !.epoch = epoch, !.pins = pins, !.asked = members]]
    /\ UNCHANGED <<latest, earliest, clock, uses, lwm, log, flushed, published, owner, members, epoch, pins, copies>>

\* A node answers: what it needs, the lowest time of its transactions (or now), and what it hosts, from one moment.
\* Asking again makes no difference, since needs only rise, but for a copy, which changes the pins.
Report(n, r, floor, time) ==
    /\ n \in members \cap rounds[r].asked
    /\ time <= latest /\ (uses[n] # {} => time <= Least(uses[n]))
    /\ floor <= Least({lwm[n], time} \cup {published[q] : q \in Owned(n)})
    /\ clock' = IF uses[n] = {} THEN [clock EXCEPT ![n] = Max(@, time)] ELSE clock
    /\ LET answer == [floor |-> floor, time |-> time, hosts |-> Owned(n)]
           known == rounds[r].answers
       IN rounds' = [rounds EXCEPT ![r].answers =
                         [m \in DOMAIN known \cup {n} |-> IF m = n THEN answer ELSE known[m]]]
    /\ UNCHANGED <<latest, earliest, uses, lwm, log, flushed, published, owner, members, epoch, pins, copies>>

\* Before the time is handed out: has anybody joined of whom no report knows?
Confirm(r) ==
    /\ Complete(r) /\ Unchanged(r)
    /\ rounds' = [rounds EXCEPT ![r].confirmed = TRUE]
    /\ UNCHANGED <<latest, earliest, clock, uses, lwm, log, flushed, published, owner, members, epoch, pins, copies>>

\* A primary replicates the time, at once, later, or twice; a lower one does no harm.
AppendTime(p, v) ==
    /\ \E r \in RoundIds : rounds[r].confirmed /\ v <= Least(Times(r))
    /\ log' = [log EXCEPT ![p] = Append(@, [k |-> "time", v |-> v])]
    /\ UNCHANGED <<latest, earliest, clock, uses, lwm, flushed, published, owner, members, epoch, pins, copies, rounds>>

Required(v) == {q \in Replicas : Since[PartitionOf[q]] <= v}

\* The snapshot, one conditional write: membership and pins are those of the round, the earliest version only rises.
Cut(r, v) ==
    /\ Complete(r) /\ Unchanged(r) /\ rounds[r].pins = pins
    /\ v <= Least(Floors(r)) /\ v > earliest
    /\ \A q \in Required(v) : owner[q] \in rounds[r].asked /\ q \in rounds[r].answers[owner[q]].hosts
    /\ earliest' = v
    /\ UNCHANGED <<latest, clock, uses, lwm, log, flushed, published, owner, members, epoch, pins, copies, rounds>>

------------------------------------------------------------- (* what holds *)

TransactionsReadable == \A n \in Nodes : \A v \in uses[n] : v >= earliest
ReplayReadable ==
    \A r \in Replicas : \A i \in (flushed[r] + 1)..Len(log[PartitionOf[r]]) :
        LET entry == log[PartitionOf[r]][i] IN entry.k = "write" => entry.v >= earliest
WatermarkReadable == earliest > 0 => \A n \in members : lwm[n] >= earliest \/ clock[n] >= earliest
Safe == TransactionsReadable /\ ReplayReadable /\ WatermarkReadable

OnlyRises == [][earliest' >= earliest]_vars
=============================================================================
