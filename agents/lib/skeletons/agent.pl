#!/usr/bin/env perl
# drover-agent-NAME: counts the lines of a file. An agent of drover(8); drover-agent(7) is its author's manual.
use strict;
use warnings;

$| = 1;    # flush every line: to a pipe it would be kept back

print "OK\n";    # ready
while (defined(my $line = <STDIN>)) {
    last unless chomp $line;    # a line that the end of input cut is no item
    if (!eval { work($line); 1 }) {
        my ($word, $why) = ref $@ eq 'ARRAY' ? @{$@} : ('FAIL', $@);
        print "$word ", $why =~ s/[\r\n]+$//r =~ s/[\r\n]+/ /gr, "\n";
    }
    print "OK\n";               # this item is finished, and here is room for the next
}

# Do one item. Replace this by your own work; die to fail it, and with ['FAIL!', why] if it is not to be tried again.
sub work {
    my ($line) = @_;
    my $row = columns($line);    # a row of a query has columns; one parameter is the whole line
    my $path = $row ? $row->{path} : $line;
    die ['FAIL!', 'the item has no column path, or it is NULL'] if !defined $path;
    open my $file, '<:raw', $path or die "cannot open it: $!\n";
    die "not a file\n" if !-f $file;
    my $lines = 0;
    $lines++ while <$file>;
    close $file or die "cannot read it: $!\n";
    print qq(RESULT {"lines":$lines}\n);
}

# Return the columns of a line `column="value" column="value"`, unescaped; undef if it is something else.
sub columns {
    my ($line) = @_;
    my %named = (n => "\n", r => "\r", t => "\t");
    my %row;
    while ($line =~ /\G([^"=]+)="([^"\\]*(?:\\.[^"\\]*)*)"(?: |\z)/gc) {
        my ($name, $value) = ($1, $2);
        $value =~ s{\\(?:x([0-9A-Fa-f]{2})|(.))}{defined $1 ? chr hex $1 : $named{$2} // $2}ge;
        $row{$name} = $value;
    }
    return %row && (pos($line) // 0) == length $line ? \%row : undef;
}
