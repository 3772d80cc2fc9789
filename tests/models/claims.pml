/* Claims by batch record: the statements of the queue, and two daemons that send them.
 *
 * A row of drover.claimable is the token of a job that may run. A claim deletes the token and inserts a record
 * (drover.in_hand) that names the job; the row of the job stays `queued` until it is marked (`claimed` or `running`, with
 * owner and attempt) or ended. A job that is more than one parameter, or was rescued before, is marked by the claim
 * itself: job 0 of the model is such a one. Each statement is one transaction. A daemon has one on its way at most; that
 * of a killed daemon may still be carried out, at any time.
 *
 * In every interleaving of two daemons, JOBS jobs and FAULTS faults (kill, lease lost, connection lost):
 *   a job ends once, by the latest attempt, which was given to an agent; an attempt is given to an agent once;
 *   no rescue offers a job that the owner of the group works on, and no such job is held;
 *   no job is lost: the model stops only when every job has ended (any other stop is an invalid end state).
 *
 * test_claims_model.py runs it, whole and with each rule WITHOUT_... left out, which must be found.
 */

#ifndef JOBS
#define JOBS 2
#endif
#ifndef FAULTS
#define FAULTS 2
#endif
#ifndef COMMANDS
#define COMMANDS 1                    /* of each: hold, step-down, give back */
#endif
#define DAEMONS 2
#define SENDERS (2 * DAEMONS)         /* a daemon, and the server process of the one that was killed before it */
#define NAMES (DAEMONS + FAULTS + 1)  /* a daemon that lost its lease comes back under a new name; 0 is nobody */

#define HAS(set, j) (set & (1 << (j)))
#define ADD(set, j) set = set | (1 << (j))
#define DROP(set, j) set = set & ~(1 << (j))

mtype = { Nothing, Turn, Mark, GiveBack, Record, Rescue };
mtype = { Queued, Held, Marked, Ended };

/* The database. */
byte owner;                           /* of the group; 0 is none */
byte claimable;                       /* tokens */
byte in_hand[NAMES];                  /* jobs in the records of a name */
mtype state[JOBS];
byte attempt[JOBS], marked_by[JOBS], rescued;

/* A daemon. `given` are the jobs that an agent has, `finished` those of them that ended well. One that is deaf was told
 * that jobs are not its own any more, and has not learnt yet that another daemon owns the group. */
typedef Daemon { bool is_alive, steps_down, must_compare, is_deaf; byte name, memory, given, finished; byte attempts[JOBS] }
Daemon daemon[DAEMONS];

/* A statement on its way. `jobs` are those that it ends, marks, gives back or records, or that a rescue leaves alone. */
typedef Statement { mtype kind; bool is_done, was_owner, wants; byte name, jobs, asked, claimed; byte attempts[JOBS] }
Statement sent[SENDERS];

byte faults = FAULTS, holds = COMMANDS, step_downs = COMMANDS, give_backs = COMMANDS, names = DAEMONS;
byte ends[JOBS], given_attempts[JOBS], latest[JOBS];  /* to check: latest is the attempt of the last claim */
hidden byte i, k, found;

#ifdef WITHOUT_FENCES                   /* any one of these three keeps an old end from a new attempt */
#define WITHOUT_OWNER
#define WITHOUT_ATTEMPT
#define IS_TO_BE_MARKED(j) false
#elif defined(WITHOUT_MARK)
#define IS_TO_BE_MARKED(j) false
#else
#define IS_TO_BE_MARKED(j) HAS(rescued, j)
#endif
#ifdef WITHOUT_OWNER
#define OWNS(n) true
#else
#define OWNS(n) (owner == n)
#endif
#ifdef WITHOUT_ATTEMPT
#define SAME(a, b) true
#else
#define SAME(a, b) (a == b)
#endif
#ifdef WITHOUT_TOKEN
#define HAS_TOKEN(j) true
#else
#define HAS_TOKEN(j) HAS(claimable, j)
#endif
#define IS_MARKED_FOR(j, n, a) (state[j] == Marked && marked_by[j] == n && SAME(attempt[j], a))
/* What `end`, `mark`, `give back` and the comparison after a lost connection ask of a row. */
#define IS_IN_HAND_OF(j, n, a) \
  (IS_MARKED_FOR(j, n, a) || (state[j] == Queued && OWNS(n) && SAME(attempt[j] + 1, a)))
#define IS_GOING_BACK(d, j) (sent[d].kind == GiveBack && HAS(sent[d].jobs, j))
#define IS_RUNNABLE(j) (state[j] == Queued && HAS(claimable, j))
#define WORKS(d, j) \
  (daemon[d].is_alive && daemon[d].name == owner && HAS(daemon[d].memory, j) && !daemon[d].must_compare && !IS_GOING_BACK(d, j))

inline carry_out_turn(s) {
  for (i : 0 .. JOBS - 1) {
    if
    :: HAS(sent[s].jobs, i) && IS_IN_HAND_OF(i, sent[s].name, sent[s].attempts[i]) ->
      assert(HAS(given_attempts[i], sent[s].attempts[i]));
      assert(sent[s].attempts[i] == latest[i]);
      ends[i]++; assert(ends[i] == 1);
      state[i] = Ended; attempt[i] = sent[s].attempts[i]; marked_by[i] = 0
    :: else
    fi
  }
}

inline carry_out_claim(s, j) {
  DROP(claimable, j);
  sent[s].claimed = 1 << j;
  sent[s].attempts[j] = attempt[j] + 1;
  latest[j] = attempt[j] + 1;
#ifndef WITHOUT_RECORD
  ADD(in_hand[sent[s].name], j);
#endif
  if
  :: j == 0 || IS_TO_BE_MARKED(j) -> state[j] = Marked; attempt[j]++; marked_by[j] = sent[s].name
  :: else
  fi
}

inline carry_out_mark(s) {
  for (i : 0 .. JOBS - 1) {
    if
    :: HAS(sent[s].jobs, i) ->
      if
      :: IS_IN_HAND_OF(i, sent[s].name, sent[s].attempts[i]) ->
        state[i] = Marked; attempt[i] = sent[s].attempts[i]; marked_by[i] = sent[s].name
      :: else -> DROP(sent[s].jobs, i)
      fi
    :: else
    fi
  }
}

inline carry_out_give_back(s) {
  for (i : 0 .. JOBS - 1) {
    if
    :: HAS(sent[s].jobs, i) && IS_IN_HAND_OF(i, sent[s].name, sent[s].attempts[i]) ->
      attempt[i] = sent[s].attempts[i];
      state[i] = Queued; marked_by[i] = 0; ADD(claimable, i)
    :: else
    fi
  }
}

/* Offer again what is named by a record and not in the memory of the owner, and remove the records of others. */
inline carry_out_rescue(whose, live) {
  for (i : 0 .. JOBS - 1) {
    found = 0;
    for (k : 1 .. NAMES - 1) { found = found | HAS(in_hand[k], i) }
    if
    :: found && !HAS(live, i) && (state[i] == Marked || (state[i] == Queued && !HAS(claimable, i))) ->
      assert(!WORKS(0, i) && !WORKS(1, i));
      if
#ifdef WITHOUT_NEW_ATTEMPT
      :: false
#else
      :: state[i] == Queued -> attempt[i]++
#endif
      :: else
      fi
      state[i] = Queued; marked_by[i] = 0; ADD(rescued, i); ADD(claimable, i)
    :: else
    fi
  }
  for (k : 1 .. NAMES - 1) {
    if
    :: k != whose -> in_hand[k] = 0
    :: else
    fi
  }
}

/* The database carries out the statement of sender s. Of a claim, any of the tokens may be the one. */
inline carry_out(s) {
  d_step {
    sent[s].was_owner = OWNS(sent[s].name);
    if
    :: sent[s].kind == Turn -> carry_out_turn(s)
    :: sent[s].kind == Mark -> carry_out_mark(s)
    :: sent[s].kind == GiveBack -> carry_out_give_back(s)
#ifdef WITHOUT_OWNED_RECORD
    :: sent[s].kind == Record -> in_hand[sent[s].name] = sent[s].jobs
#else
    :: sent[s].kind == Record && owner == sent[s].name -> in_hand[sent[s].name] = sent[s].jobs
#endif
    :: sent[s].kind == Rescue && sent[s].was_owner -> carry_out_rescue(sent[s].name, sent[s].jobs)
    :: else
    fi
    sent[s].is_done = true
  }
  if
  :: sent[s].wants && sent[s].was_owner && claimable ->
    if
    :: HAS(claimable, 0) -> carry_out_claim(s, 0)
    :: HAS(claimable, 1) -> carry_out_claim(s, 1)
#if JOBS > 2
    :: HAS(claimable, 2) -> carry_out_claim(s, 2)
#endif
    fi
  :: else
  fi
}

inline send(d, what, which, want) {
  sent[d].kind = what; sent[d].jobs = which; sent[d].asked = which; sent[d].wants = want;
  sent[d].name = daemon[d].name;
  for (i : 0 .. JOBS - 1) { sent[d].attempts[i] = daemon[d].attempts[i] }
}

inline forget_statement(s) {
  sent[s].kind = Nothing; sent[s].is_done = false; sent[s].was_owner = false; sent[s].wants = false;
  sent[s].name = 0; sent[s].jobs = 0; sent[s].asked = 0; sent[s].claimed = 0;
  for (i : 0 .. JOBS - 1) { sent[s].attempts[i] = 0 }
}

inline forget_jobs(d, which) {
  daemon[d].memory = daemon[d].memory & ~(which);
  daemon[d].given = daemon[d].given & daemon[d].memory;
  daemon[d].finished = daemon[d].finished & daemon[d].memory;
  for (i : 0 .. JOBS - 1) {
    if
    :: !HAS(daemon[d].memory, i) -> daemon[d].attempts[i] = 0
    :: else
    fi
  }
}

/* The lease is lost: all children are killed, all jobs forgotten. */
inline stand_by(d) {
  forget_jobs(d, 255);
  daemon[d].must_compare = false; daemon[d].steps_down = false; daemon[d].is_deaf = false;
#ifndef WITHOUT_NEW_NAME
  daemon[d].name = names + 1; names++
#endif
}

inline read_answer(d) {
  if
  :: sent[d].kind == Mark -> forget_jobs(d, sent[d].asked & ~sent[d].jobs)  /* fenced */
  :: sent[d].kind == Turn || sent[d].kind == GiveBack -> forget_jobs(d, sent[d].jobs)
  :: else
  fi
  for (i : 0 .. JOBS - 1) {
    if
    :: HAS(sent[d].claimed, i) -> ADD(daemon[d].memory, i); daemon[d].attempts[i] = sent[d].attempts[i]
    :: else
    fi
  }
  forget_statement(d)
}

/* After a lost connection, whose server process was ended first: what ended or is fenced leaves the memory, and the
 * claims whose answer was lost are given back. */
inline compare(d) {
  found = 0;
  for (i : 0 .. JOBS - 1) {
    if
    :: HAS(daemon[d].memory, i) && 
       !(IS_IN_HAND_OF(i, daemon[d].name, daemon[d].attempts[i]) && !IS_RUNNABLE(i)) -> ADD(found, i)
    :: else
    fi
  }
  forget_jobs(d, found);
  daemon[d].must_compare = false;
#ifndef WITHOUT_COMPARISON
  carry_out_rescue(daemon[d].name, daemon[d].memory)
#endif
}

#define IS_IDLE(d) (daemon[d].is_alive && sent[d].kind == Nothing)
#define MAY_ASK(d) (IS_IDLE(d) && owner == daemon[d].name && !daemon[d].must_compare)
#define STANDS_BY(d) (IS_IDLE(d) && !daemon[d].is_deaf && daemon[d].memory == 0 && owner != daemon[d].name)
#define IS_OWNED_BY_LIVING ((daemon[0].is_alive && owner == daemon[0].name) || (daemon[1].is_alive && owner == daemon[1].name))
#define MAY_GIVE(d, j) (daemon[d].is_alive && !daemon[d].must_compare && HAS(daemon[d].memory, j) && !IS_GOING_BACK(d, j))
#define IN_RECORDS(n) (in_hand[n] && n != daemon[d].name)
#if FAULTS == 0
#define OTHERS_HAVE_RECORDS(d) (IN_RECORDS(1) || IN_RECORDS(2))
#elif FAULTS == 1
#define OTHERS_HAVE_RECORDS(d) (IN_RECORDS(1) || IN_RECORDS(2) || IN_RECORDS(3))
#else
#define OTHERS_HAVE_RECORDS(d) (IN_RECORDS(1) || IN_RECORDS(2) || IN_RECORDS(3) || IN_RECORDS(4))
#endif
#define ALL_ENDED (ends[0] && ends[1] && ends[JOBS - 1])

proctype daemon_of(byte d) {
  byte j = 0;
  do
  :: ALL_ENDED -> break

  /* the database */
  :: atomic { sent[d].kind != Nothing && !sent[d].is_done -> carry_out(d) }
  :: atomic { sent[DAEMONS + d].kind != Nothing -> carry_out(DAEMONS + d); forget_statement(DAEMONS + d) }
  :: d_step { sent[DAEMONS + d].kind != Nothing -> forget_statement(DAEMONS + d); skip }

  /* the daemon: statements and their answers */
  :: d_step { MAY_ASK(d) && (daemon[d].finished || (claimable && !daemon[d].steps_down)) ->
       send(d, Turn, daemon[d].finished, !daemon[d].steps_down); skip }
  :: d_step { MAY_ASK(d) && in_hand[daemon[d].name] != daemon[d].memory -> send(d, Record, daemon[d].memory, false); skip }
  :: d_step { MAY_ASK(d) && OTHERS_HAVE_RECORDS(d) -> send(d, Rescue, daemon[d].memory, false); skip }
  :: d_step { daemon[d].is_alive && sent[d].is_done ->
       if
       :: sent[d].was_owner -> read_answer(d)
       :: !sent[d].was_owner && sent[d].kind == Turn -> daemon[d].is_deaf = true; read_answer(d)  /* fenced */
       :: else -> forget_statement(d); stand_by(d)
       fi; skip }
  :: d_step { IS_IDLE(d) && daemon[d].is_deaf && in_hand[daemon[d].name] != daemon[d].memory ->
       send(d, Record, daemon[d].memory, false); skip }
  :: d_step { IS_IDLE(d) && daemon[d].is_deaf -> stand_by(d); skip }
  :: d_step { IS_IDLE(d) && owner != daemon[d].name && daemon[d].memory -> stand_by(d); skip }
  :: d_step { IS_IDLE(d) && daemon[d].must_compare ->
       if
       :: owner == daemon[d].name -> compare(d)
       :: else -> stand_by(d)
       fi; skip }

  /* the daemon and its agents, with one job: any */
  :: atomic { daemon[d].is_alive && daemon[d].memory ->
       if
       :: j = 0
       :: j = 1
#if JOBS > 2
       :: j = 2
#endif
       fi;
       if
       :: MAY_GIVE(d, j) && !HAS(daemon[d].given, j) ->
            assert(!HAS(given_attempts[j], daemon[d].attempts[j]));
#ifndef WITHOUT_FENCES
            assert(!HAS(rescued, j) || state[j] == Marked || owner != daemon[d].name);
#endif
            given_attempts[j] = given_attempts[j] | (1 << daemon[d].attempts[j]);
            ADD(daemon[d].given, j)
       :: MAY_GIVE(d, j) && HAS(daemon[d].given, j) && !HAS(daemon[d].finished, j) ->
            ADD(daemon[d].finished, j)
       :: MAY_ASK(d) && HAS(daemon[d].memory, j) && !HAS(daemon[d].finished, j) && give_backs ->
            give_backs--; send(d, GiveBack, (1 << j), false)
       :: MAY_ASK(d) && HAS(daemon[d].memory, j) && !HAS(daemon[d].finished, j) && state[j] == Queued ->
            send(d, Mark, (1 << j), false)
       :: else
       fi;
       j = 0 }

  /* a daemon stands down on purpose; another takes over when there is no owner, or a dead one */
  :: d_step { MAY_ASK(d) && step_downs && !daemon[d].steps_down && daemon[1 - d].is_alive ->
       step_downs--; daemon[d].steps_down = true; skip }
  :: d_step { MAY_ASK(d) && daemon[d].steps_down && !daemon[d].memory -> daemon[d].steps_down = false; owner = 0; skip }
  :: d_step { STANDS_BY(d) && !IS_OWNED_BY_LIVING -> owner = daemon[d].name; skip }

  /* a command */
  :: d_step { holds && state[JOBS - 1] == Queued && HAS_TOKEN(JOBS - 1) ->
       assert(!WORKS(0, JOBS - 1) && !WORKS(1, JOBS - 1));
       holds--; state[JOBS - 1] = Held; DROP(claimable, (JOBS - 1)); skip }
  :: d_step { state[JOBS - 1] == Held -> state[JOBS - 1] = Queued; ADD(claimable, (JOBS - 1)); skip }

  /* faults */
  :: d_step { faults && daemon[d].is_alive ->
       faults--;
       if
       :: sent[d].kind != Nothing && !sent[d].is_done && sent[DAEMONS + d].kind == Nothing ->
         sent[DAEMONS + d].kind = sent[d].kind; sent[DAEMONS + d].wants = sent[d].wants;
         sent[DAEMONS + d].name = sent[d].name; sent[DAEMONS + d].jobs = sent[d].jobs;
         for (i : 0 .. JOBS - 1) { sent[DAEMONS + d].attempts[i] = sent[d].attempts[i] }
       :: else
       fi
       forget_statement(d); stand_by(d); daemon[d].is_alive = false; skip }
  :: d_step { !daemon[d].is_alive -> daemon[d].is_alive = true; skip }
  :: d_step { faults && STANDS_BY(d) && daemon[1 - d].is_alive && owner == daemon[1 - d].name ->
       faults--; owner = daemon[d].name; skip }
  :: d_step { faults && daemon[d].is_alive && sent[d].kind != Nothing ->
       faults--; forget_statement(d); daemon[d].must_compare = true; skip }
  od
}

init {
  d_step {
    for (i : 0 .. DAEMONS - 1) { daemon[i].is_alive = true; daemon[i].name = i + 1; sent[i].kind = Nothing;
                                 sent[DAEMONS + i].kind = Nothing }
    for (i : 0 .. JOBS - 1) { state[i] = Queued; ADD(claimable, i) }; skip }
  run daemon_of(0); run daemon_of(1)
}
