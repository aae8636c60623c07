---------------------- MODULE MCCatalogCompaction ----------------------
(***************************************************************************)
(* A small instance for TLC: two nodes, one replica, two rounds. Round 1  *)
(* hands a time out, round 2 cuts; both may be under way at once. Node b   *)
(* hosts nothing and its watermark never limits: it has transactions only; *)
(* in MCCopy.cfg it hosts the second replica, which becomes a copy once.   *)
(***************************************************************************)
EXTENDS CatalogCompaction
CONSTANTS a, b, r1, r2, MaxVersion, MaxLog, MaxEpoch, MaxCopies,
          Late  \* whether all versions are there from the start, and the watermark and the clocks have reached the last one
Owners == [r \in Replicas |-> IF r = r1 THEN a ELSE b]
Copies == [r \in Replicas |-> 1]
FirstTables == [p \in Partitions |-> 0]

Newest == IF Late THEN MaxVersion ELSE 1

MCInit ==
    /\ latest = Newest /\ earliest = 0 /\ clock = [n \in Nodes |-> Newest] /\ uses = [n \in Nodes |-> {}]
    /\ lwm = [n \in Nodes |-> IF n = a /\ ~Late THEN 0 ELSE MaxVersion] /\ log = [p \in Partitions |-> <<>>]
    /\ flushed = [r \in Replicas |-> 0] /\ published = [r \in Replicas |-> 1]
    /\ owner = Owners /\ members = Nodes /\ epoch = 0 /\ rounds = [r \in RoundIds |-> NoRound]
    /\ pins = 0 /\ copies = [r \in Replicas |-> NoCopy]

Now(n) == IF uses[n] = {} THEN clock[n] ELSE Least(uses[n])
Floor(n) == Least({lwm[n], Now(n)} \cup {published[q] : q \in Owned(n)})

MCNext ==
    \/ latest < MaxVersion /\ NewVersion
    \/ \E n \in Nodes : epoch < MaxEpoch /\ (Crash(n) \/ Join(n))
    \/ \E n \in Nodes, v \in 1..MaxVersion : Begin(n, v) \/ End(n, v)
    \/ \E v \in 1..MaxVersion : v > lwm[a] /\ MoveWatermark(a, v)
    \/ \E v \in 1..MaxVersion : Len(log[1]) < MaxLog /\ (Write(1, v) \/ (Complete(1) /\ v = Least(Times(1)) /\ AppendTime(1, v)))
    \/ \E r \in Replicas, upto \in 0..MaxLog : (NoFlush \/ upto > flushed[r]) /\ Flush(r, upto)
    \/ \E r \in Replicas \ {r1} : MaxCopies > 0 /\ pins = 0 /\ (TakeCopy(r, r1) \/ Install(r))
    \/ \E r \in RoundIds : StartRound(r)
    \/ \E n \in Nodes : \/ n \notin Answered(1) /\ Report(n, 1, 0, Now(n))
                        \/ n \notin Answered(2) /\ Report(n, 2, Floor(n), Floor(n))
    \/ ~rounds[1].confirmed /\ Confirm(1)
    \/ Complete(2) /\ Cut(2, Least(Floors(2)))
MCSpec == MCInit /\ [][MCNext]_vars
=========================================================================
